"""A picker that stops, is killed, or hangs under load, in a separate process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from typing import NamedTuple

import aiohttp
import orjson
import pytest
import yaml

from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar_lab.live.processes import laar_process, wait_for
from support import Answer, RecordingUpstream, eventually, free_port
from support.bootstraps import rendered

pytestmark = pytest.mark.envoy

CLIENTS = 8
BODY = orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "model": "m"})
PING_S = 12.0


class Ended(NamedTuple):
    status: int | str
    began: float
    decided: bool


class Load:
    """Clients that keep sending requests; they stop when the context ends."""

    def __init__(self, url):
        self._url = url
        self._stop = asyncio.Event()
        self.ended = []

    async def __aenter__(self):
        self._group = asyncio.gather(*(self._client() for _ in range(CLIENTS)))
        return self

    async def __aexit__(self, *_failure):
        self._stop.set()
        await self._group

    async def _client(self):
        async with aiohttp.ClientSession() as http:
            while not self._stop.is_set():
                self.ended.append(await self._ask(http))
                await asyncio.sleep(0.01)

    async def _ask(self, http):
        began = time.monotonic()
        status, decided = "cut", False
        try:
            async with http.post(
                self._url + "/v1/chat/completions",
                data=BytesIO(BODY),
                headers={"content-type": "application/json"},
            ) as answer:
                await answer.read()
                status, decided = answer.status, "x-laar-decision-id" in answer.headers
        except aiohttp.ClientError:
            pass
        return Ended(status, began, decided)

    def failed(self):
        return sum(e.status != 200 for e in self.ended)

    async def some_more(self, *, decided, count=2 * CLIENTS):
        """Wait for `count` requests that begin after this, and are decided by the picker or not."""
        now = time.monotonic()
        await eventually(
            lambda: sum(e.began > now and e.decided is decided for e in self.ended) >= count,
            what=f"requests that are {'' if decided else 'not '}decided",
            timeout_s=30.0,  # in full duplex, Envoy notices a hanging picker after 12 s
        )


class World:
    """A picker in its own process, an Envoy and two endpoints."""

    def __init__(self, directory, shape, stack):
        self.directory, self.shape, self._stack = directory, shape, stack

    async def start(self):
        upstreams = [await self._stack.enter_async_context(RecordingUpstream()) for _ in range(2)]
        ports = {name: free_port() for name in ("ext_proc", "health", "admin")}
        eds = self.directory / "eds" / "endpoints.json"
        eds.parent.mkdir()
        self._admin, self._port = ports["admin"], ports["ext_proc"]
        document = {
            "endpoints": [{"address": u.address, "models": ["m"]} for u in upstreams],
            "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "envoy": {"eds_file": str(eds)},
            "shutdown": {"drain_s": 1.0, "grace_s": 5.0},
        }
        self._settings = self.directory / "laar.yaml"
        self._settings.write_text(yaml.safe_dump(document))
        await self.start_picker()
        options = BootstrapOptions(
            picker=f"127.0.0.1:{ports['ext_proc']}",
            listen_port=0,
            ready_port=0,
            admin_port=0,
            eds_path=str(eds),
        )
        envoy = EnvoyProcess(rendered(self.shape, options), self.directory)
        self.url = (await self._stack.enter_async_context(envoy)).url()
        self.upstreams = upstreams
        return self

    async def start_picker(self):
        arguments = ("serve", "-c", str(self._settings))
        self.picker = laar_process(arguments, self.directory / "picker.log")
        await self._stack.enter_async_context(self.picker)
        await wait_for(f"http://127.0.0.1:{self._admin}/readyz", self.picker)

    def signal(self, name):
        os.kill(self.picker.pid, getattr(signal, name))

    def refuses(self):
        """Return whether the picker accepts no more connections from Envoy."""
        with socket.socket() as peer:
            return peer.connect_ex(("127.0.0.1", self._port)) != 0


@asynccontextmanager
async def world(directory, shape):
    async with AsyncExitStack() as stack:
        yield await World(directory, shape, stack).start()


@pytest.mark.parametrize(
    ("shape", "hangs"),
    [
        ("standalone", True),
        ("gateway", True),
        ("full-duplex", False),
        pytest.param("full-duplex", True, marks=pytest.mark.slow),
    ],
)
async def test_few_requests_feel_that_a_picker_stops_or_is_killed_or_hangs(
    tmp_path, envoy_binary, shape, hangs
):
    lost = CLIENTS if shape == "full-duplex" else 0  # at most those passing through the picker
    async with world(tmp_path, shape) as it, Load(it.url) as load:
        await load.some_more(decided=True)
        it.signal("SIGTERM")
        await load.some_more(decided=False)
        await it.picker.stop()
        await load.some_more(decided=False)
        await it.start_picker()
        await load.some_more(decided=True)
        assert load.failed() == 0

        it.signal("SIGKILL")
        await load.some_more(decided=False)
        await it.start_picker()
        await load.some_more(decided=True)
        assert load.failed() <= lost
        if not hangs:
            return

        it.signal("SIGSTOP")
        try:
            await load.some_more(decided=False, count=4 * CLIENTS)
        finally:
            it.signal("SIGCONT")
        await load.some_more(decided=True)
    assert load.failed() <= 2 * lost


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_an_answer_in_flight_continues_if_the_picker_is_killed_or_hangs(
    tmp_path, envoy_binary, http, shape
):
    async with world(tmp_path, shape) as it:
        for name in ("SIGSTOP", "SIGKILL"):
            for upstream in it.upstreams:
                upstream.chat_answer = None
            async with Load(it.url) as load:
                await load.some_more(decided=True)
            more = asyncio.Event()

            async def answer(more=more):
                yield b"data: 1\n\n"
                await more.wait()
                for number in range(2, 100):
                    yield b"data: %d\n\n" % number
                    await asyncio.sleep(0.01)

            for upstream in it.upstreams:  # the picker asks for templates, too
                upstream.chat_answer = lambda answer=answer: Answer.sse(answer())
            async with http.post(
                it.url + "/v1/chat/completions",
                data=BytesIO(BODY),
                headers={"content-type": "application/json"},
            ) as got:
                assert await got.content.readline() == b"data: 1\n"
                it.signal(name)
                more.set()
                rest = b"".join(b"data: %d\n\n" % number for number in range(2, 100))
                assert await got.content.read() == b"\n" + rest
                assert "x-laar-decision-id" in got.headers
            if name == "SIGSTOP":
                it.signal("SIGCONT")
