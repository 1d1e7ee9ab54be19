"""A body that kills each engine that reads it: how many die, and what others lose (decision 9)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from support.clients import chat, post
from support.grids import crossed
from support.served import ServedEngine
from support.sockets import Arrived, SocketEngine

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway"]
STARTED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
POISON = b"kills"


class Mortal(SocketEngine):
    """Dies of a body with `POISON`, in one of the ways below; nothing listens there afterwards."""

    deaths = 0
    restarts_s = 0.0

    def __init__(self, way):
        super().__init__(self._behave)
        self.way, self.open = way, set()

    async def _serve(self, reader, writer):
        self.open.add(writer)
        try:
            await super()._serve(reader, writer)
        finally:
            self.open.discard(writer)

    async def _behave(self, arrived: Arrived) -> None:
        await arrived.read()
        if POISON in arrived.body:
            await self.way(self, arrived)
        else:
            await asyncio.sleep(0.02)
            await arrived.answer()

    async def die(self, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        if not self._server.is_serving():
            return
        self.deaths += 1
        self._server.close()
        for writer in list(self.open):
            writer.transport.abort()
        if self.restarts_s:
            asyncio.get_running_loop().call_later(
                self.restarts_s, lambda: asyncio.ensure_future(self._rise())
            )

    async def _rise(self):
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port), limit=1 << 26)


async def at_once(engine, _arrived):
    await engine.die()


def says_and_dies(status, after_s):
    async def way(engine, arrived):
        await arrived.answer(status, b'{"error":{"message":"broken"}}')
        engine.dying = asyncio.ensure_future(engine.die(after_s))

    return way


async def amid(engine, arrived):
    arrived.writer.write(STARTED + b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
    await arrived.writer.drain()
    await engine.die(0.1)


async def later(engine, _arrived):
    await engine.die(1.5)


WAYS = {
    "at-once": at_once,
    "after-500": says_and_dies(500, 0.1),
    "after-503": says_and_dies(503, 0.1),
    "after-520": says_and_dies(520, 0.3),
    "after-200": says_and_dies(200, 0.2),
    "amid": amid,
    "later": later,
}
REPEATS = {  # copies that a client sends at first, how far apart, and seconds until it repeats them
    "once, then at once": (1, 0.0, (0.0, 0.0)),
    "as SDKs do": (1, 0.0, (0.5, 1.0)),
    "two, then two": (2, 0.0, (0.3,)),
    "eight": (8, 0.0, (0.5,)),
    "eight in a row": (8, 0.02, (0.5,)),
}


async def send(http, envoy, body, **options):
    try:
        return (await asyncio.wait_for(post(http, envoy, body), **options)).status
    except (aiohttp.ClientError, TimeoutError):
        return 0


@pytest.fixture
async def mortals(gateway, http):
    async def start(shape, way, count=5, restarts_s=0.0):
        engines = [await gateway.enter(Mortal(way)) for _ in range(count)]
        for engine in engines:
            engine.restarts_s = restarts_s
        gateway.members(*((engine.address, "m") for engine in engines))
        runner = await gateway.picker()
        return engines, await gateway.envoy(shape), runner

    return start


async def beside(http, envoy, killing):
    """Return the statuses of others' requests while something runs."""
    ended, tasks, n = asyncio.ensure_future(killing), [], 0
    while not ended.done() or n < 100:
        n += 1
        tasks.append(asyncio.ensure_future(send(http, envoy, chat(f"{n} others"), timeout=30)))
        await asyncio.sleep(0.05)
    await ended
    return Counter(await asyncio.gather(*tasks))


def drawn():
    """Yield shapes, ways and repeats: the ways of each shape meet half of the repeats."""
    for (n, way), (m, repeats) in itertools.product(enumerate(WAYS), enumerate(REPEATS)):
        # A copy that was sent after a good answer, and before a death, can't be called back.
        if way != "after-200" or repeats in ("as SDKs do", "eight"):
            marks = [pytest.mark.slow] * ((n + m) % 3 > 0)
            yield pytest.param(SHAPES[(n + m) % 2], way, repeats, marks=marks)


@pytest.mark.parametrize(("shape", "way", "repeats"), list(drawn()))
@pytest.mark.long
async def test_a_body_kills_two_engines_at_most(mortals, http, figure, shape, way, repeats):
    engines, envoy, _ = await mortals(shape, WAYS[way])
    body, (copies, apart_s, waits) = chat("this kills", stream=way == "amid", n=2), REPEATS[repeats]
    patience_s = 0.7 if repeats == "as SDKs do" else 30  # given up, if it takes long

    async def copy(number, timeout_s):
        await asyncio.sleep(number * apart_s)
        return await send(http, envoy, body, timeout=timeout_s)

    async def kill():
        await send(http, envoy, chat("others"), timeout=30)
        await asyncio.sleep(0.5)
        await asyncio.gather(*(copy(n, patience_s) for n in range(copies)))
        for wait_s in waits:
            await asyncio.sleep(wait_s)
            await asyncio.gather(*(copy(n, 30) for n in range(copies)))
        await asyncio.sleep(2.0)  # what dies late dies now
        await send(http, envoy, body, timeout=30)

    others = await beside(http, envoy, kill())
    deaths = sum(engine.deaths for engine in engines)
    figure("deaths of five by one body and its repeats", deaths, "<= 2")
    figure("others lost, of 100", 100 * (1 - others[200] / others.total()), "<= 2")
    assert deaths <= 2
    assert others.total() - others[200] <= max(2, 0.02 * others.total())  # those in flight at both


class Broken(ServedEngine):
    """Fails all requests for reasons of its own, the picker's too, and lives on."""

    def __init__(self, status):
        self._status = status

    async def _handle(self, request):
        await request.read()
        return web.Response(status=self._status if request.method == "POST" else 200)


@pytest.mark.parametrize(
    ("shape", "status", "warm"), crossed(SHAPES, [(500, True), (502, False), (520, True)])
)
async def test_a_body_that_met_two_broken_engines_is_served(
    gateway, http, figure, shape, status, warm
):
    engines = [await gateway.enter(Broken(status)) for _ in range(2)]
    engines.append(await gateway.enter(SocketEngine()))
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    envoy, served = await gateway.envoy(shape), []

    async def client(number):
        for wait_s in (0.0, 0.5, 1.0, 2.0):
            await asyncio.sleep(wait_s)
            if await send(http, envoy, chat(f"body {number}"), timeout=30) == 200:
                served.append(number)
                return

    if warm:
        await client(-1)
    await asyncio.gather(*map(client, range(12)))
    refused = {*range(12)} - {*served}
    figure("of 12 bodies refused since two engines fail by themselves", len(refused), "0")
    assert not refused
