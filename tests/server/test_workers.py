"""`laar serve --workers`: processes that share a port and a store, with a real Envoy."""

import asyncio
import errno
import os
import re
import signal
import socket
import sys
from contextlib import AsyncExitStack
from io import BytesIO

import aiohttp
import orjson
import psutil
import pytest
import pytest_asyncio
import yaml

from laar.cli.serve import _serve_together
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.errors import SettingError
from laar.server import workers
from laar.settings import Loaded, Settings, load
from laar_lab.live.processes import LaarProcess
from support import RecordingUpstream, eventually, free_port
from support.bootstraps import rendered
from support.stores import SERVERS, StoreProcess, binary_of
from support.waiting import consecutive_ports

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

BURST = 192
"""Concurrent requests: three times the streams that a connection to a worker should have."""


class Machine:
    """Two workers, an Envoy and two endpoints."""

    async def start(self, directory, stack, drain_s=0.3):
        store = StoreProcess(binary_of(SERVERS[0]), directory)
        await store.start()
        stack.callback(store.stop)
        wide = aiohttp.TCPConnector(limit=BURST)
        self.http = await stack.enter_async_context(aiohttp.ClientSession(connector=wide))
        upstreams = []
        for _ in range(2):
            upstream = RecordingUpstream()
            upstreams.append(await stack.enter_async_context(upstream))
        ports = {"ext_proc": free_port(), "health": free_port(), "admin": consecutive_ports()}
        self.admin = ports["admin"]
        eds = directory / "run" / "endpoints.json"
        document = {
            "endpoints": [{"address": u.address, "models": ["m"]} for u in upstreams],
            "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "envoy": {"eds_file": str(eds)},
            "shutdown": {"drain_s": drain_s, "grace_s": 3.0},
            "share": {"lease_s": 1.0, "url": store.url},
        }
        settings = directory / "laar.yaml"
        settings.write_text(yaml.safe_dump(document))
        self.command = ("serve", "-c", str(settings), "--workers", "2")
        await self.serve(directory / "picker.log", stack)
        options = BootstrapOptions(
            picker=f"127.0.0.1:{ports['ext_proc']}",
            listen_port=0,
            ready_port=0,
            admin_port=0,
            eds_path=str(eds),
        )
        envoy = EnvoyProcess(rendered("standalone", options), directory)
        self.url = (await stack.enter_async_context(envoy)).url()
        return self

    async def serve(self, log, stack):
        self.process = LaarProcess(self.command, log)
        await stack.enter_async_context(self.process)
        await eventually(self.together, what="two workers that know each other", timeout_s=90.0)

    async def metric(self, index, name):
        url = f"http://127.0.0.1:{self.admin + index}/metrics"
        try:
            async with self.http.get(url) as answer:
                found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", await answer.text(), re.MULTILINE)
        except aiohttp.ClientError:
            return None
        return sum(map(float, found)) if found else None

    async def taken(self, index):
        """Return the number of prompts that a worker has received from the others."""
        url = f"http://127.0.0.1:{self.admin + index}/metrics"
        async with self.http.get(url) as answer:
            pattern = r'^laar_share_records_total\{kind="entered",way="taken"\} (\S+)$'
            found = re.search(pattern, await answer.text(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def together(self):
        self.process.check_alive()
        return [await self.metric(index, "laar_share_peers") for index in (0, 1)] == [1.0, 1.0]

    def workers(self):
        return psutil.Process(self.process.pid).children()

    async def ask(self, text="hello"):
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        url = f"{self.url}/v1/chat/completions"
        data = BytesIO(orjson.dumps(body))
        headers = {"content-type": "application/json"}
        async with self.http.post(url, data=data, headers=headers) as answer:
            await answer.read()
            self.decision = answer.headers.get("x-laar-decision-id")
            return answer.status, answer.headers.get("x-laar-reason")

    async def picked(self):
        """Return whether the picker decides all of ten requests."""
        answers = [await self.ask() for _ in range(10)]
        assert {status for status, _ in answers} == {200}
        return all(reason is not None for _, reason in answers)

    async def report(self, index, decision, *, correct):
        url = f"http://127.0.0.1:{self.admin + index}/outcomes"
        body = orjson.dumps({"decision_id": decision, "correct": correct})
        headers = {"content-type": "application/json"}
        async with self.http.post(url, data=body, headers=headers) as answer:
            return (await answer.json())["verdicts"][0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory, envoy_binary):
    """Yield the machine that the first tests share: new for the first, stopped by the last."""
    async with AsyncExitStack() as stack:
        yield await Machine().start(tmp_path_factory.mktemp("machine"), stack)


on_the_machine = pytest.mark.asyncio(loop_scope="module")


@on_the_machine
async def test_a_burst_at_a_new_envoy_reaches_every_worker(machine):
    """The burst arrives before Envoy knows how many streams a worker's connection allows."""
    asked = [machine.ask(f"the question {number}") for number in range(BURST)]
    answers = await asyncio.gather(*asked)
    assert {status for status, _ in answers} == {200}
    assert sum(reason is None for _, reason in answers) == 0


@on_the_machine
async def test_an_outcome_may_be_reported_to_any_worker(machine):
    verdicts = set()
    for _ in range(6):
        assert (await machine.ask())[0] == 200
        verdicts |= {
            await machine.report(index, machine.decision, correct=False) for index in (0, 1)
        }
    assert "passed" in verdicts
    assert verdicts <= {"passed", "taken", "repeated"}

    async def counted():
        cells = [await machine.metric(index, "laar_outcome_cells") for index in (0, 1)]
        return cells == [1.0, 1.0]

    await eventually(counted, what="the outcome at both workers")
    async with machine.http.get(f"http://127.0.0.1:{machine.admin}/fleet") as answer:
        shown = (await answer.json())["about"]["sharing"]
    assert (shown["connected"], shown["pickers"]) == (True, 1)


@on_the_machine
async def test_workers_share_state_and_restart_if_killed_and_a_stop_ends_all(machine):
    assert len(machine.workers()) == 2
    text = "a conversation that goes on " * 100
    before = sum([await machine.taken(index) for index in (0, 1)])
    statuses = [(await machine.ask(text))[0] for _ in range(10)]
    assert statuses == [200] * 10

    async def heard():
        taken = [await machine.taken(index) for index in (0, 1)]
        return sum(taken) >= before + 10

    await eventually(heard, what="the prompts of each at the other")
    victim = machine.workers()[0]
    victim.send_signal(signal.SIGKILL)
    statuses = [(await machine.ask(text))[0] for _ in range(20)]
    assert statuses == [200] * 20
    await eventually(machine.together, what="a new worker", timeout_s=90.0)
    assert victim.pid not in [worker.pid for worker in machine.workers()]
    restored = [await machine.metric(index, "laar_share_restored_prompts") for index in (0, 1)]
    heard = [await machine.taken(index) for index in (0, 1)]
    assert sum(restored) + sum(heard) > 0, "the new worker knows earlier prompts"
    # A planned stop ends all workers.
    workers = machine.workers()
    statuses = [(await machine.ask())[0] for _ in range(5)]
    os.kill(machine.process.pid, signal.SIGTERM)
    statuses += [(await machine.ask())[0] for _ in range(20)]
    await machine.process.stop()
    assert set(statuses) == {200}
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends them")
async def test_workers_end_when_their_parent_is_killed(tmp_path, envoy_binary):
    """If they drained instead, they would share the port with the next workers."""
    async with AsyncExitStack() as stack:
        machine = await Machine().start(tmp_path, stack, drain_s=600)
        workers = machine.workers()
        os.kill(machine.process.pid, signal.SIGKILL)
        await eventually(
            lambda: not any(worker.is_running() for worker in workers), what="the workers' end"
        )
        await machine.serve(tmp_path / "next.log", stack)
        await eventually(machine.picked, what="the picker to decide all requests", timeout_s=30.0)
        machine.process.kill()


def settings_of(tmp_path, share=None, **ports):
    """Write settings for two workers with these ports; return the path."""
    settings = tmp_path / "laar.yaml"
    ports = {"ext_proc": free_port(), "health": free_port(), **ports}
    listen = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    document = {"endpoints": [{"address": "127.0.0.1:1", "models": ["m"]}], "listen": listen}
    document["share"] = {"url": "redis://127.0.0.1:1"} if share is None else share
    settings.write_text(yaml.safe_dump(document))
    return settings


def refused(settings):
    """Return the error that `serve` prints before any worker starts."""
    with pytest.raises(SettingError) as error:
        _serve_together(load(settings), settings, 2, with_envoy=False, verbose=False)
    return str(error.value)


@pytest.mark.parametrize("worker", [0, 1])
def test_an_admin_port_that_is_taken_is_reported_before_any_worker_starts(tmp_path, worker):
    first = consecutive_ports()
    with socket.create_server(("127.0.0.1", first + worker)):
        error = refused(settings_of(tmp_path, admin=first))
    assert f"listen.admin: can't listen on 127.0.0.1:{first + worker};" in error
    assert "2 workers use as many admin ports" in error
    with socket.create_server(("127.0.0.1", first)):
        error = refused(settings_of(tmp_path, health=first))
    assert f"listen.health: can't listen on 127.0.0.1:{first};" in error
    assert "admin" not in error


def test_workers_without_a_store_are_refused_with_a_fix(tmp_path):
    assert "share.url: --workers 2 needs it" in refused(settings_of(tmp_path, share={}))


_SLOW_WORKER = """
import pathlib, signal, sys, time
home = pathlib.Path(sys.argv[1])
def stop(*_):
    time.sleep(3)
    (home / "finished").touch()
    sys.exit()
signal.signal(signal.SIGTERM, stop)
(home / "started").touch()
while True:
    time.sleep(0.05)
"""

_STARTING_WORKER = """
import pathlib, signal, sys, time
home, beat = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1], "beat-0")
def hang_up(*_):
    if not beat.exists():
        sys.exit(130)
    (home / "reloaded").touch()
signal.signal(signal.SIGHUP, hang_up)
(home / "up").touch()
while True:
    if (home / "go").exists():
        beat.touch()
    time.sleep(0.05)
"""

_PARENT = """
import sys
from pathlib import Path
from laar.server import workers
from laar.settings import load
workers._STUCK_S = 0.2
home = Path(sys.argv[1])
command = [sys.executable, str(home / "worker.py"), str(home)]
workers.run_workers(load(home / "laar.yaml"), 1, command)
"""


async def test_the_parent_waits_as_long_as_changed_settings_let_workers_drain(tmp_path):
    def write(grace_s):
        document = {
            "endpoints": [{"address": "127.0.0.1:1", "models": ["m"]}],
            "shutdown": {"drain_s": 0, "grace_s": grace_s},
        }
        (tmp_path / "laar.yaml").write_text(yaml.safe_dump(document))

    write(0)
    (tmp_path / "worker.py").write_text(_SLOW_WORKER)
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, str(tmp_path))
    try:
        await eventually((tmp_path / "started").exists, what="the worker", timeout_s=60.0)
        write(60)
        parent.terminate()
        assert await asyncio.wait_for(parent.wait(), 60) == 0
    finally:
        if parent.returncode is None:
            parent.kill()
    assert (tmp_path / "finished").exists()


async def test_a_reload_reaches_running_workers_and_stops_no_starting_one(tmp_path):
    (tmp_path / "laar.yaml").write_text("endpoints: [{address: '127.0.0.1:1', models: [m]}]")
    (tmp_path / "worker.py").write_text(_STARTING_WORKER)
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, str(tmp_path))

    async def reloaded():
        parent.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.1)
        return (tmp_path / "reloaded").exists()

    try:
        await eventually((tmp_path / "up").exists, what="the worker", timeout_s=60.0)
        assert not await reloaded()
        (tmp_path / "go").touch()
        await eventually(reloaded, what="the reload", timeout_s=60.0)
        parent.terminate()
        assert await asyncio.wait_for(parent.wait(), 60) == 0
    finally:
        if parent.returncode is None:
            parent.kill()


_AGING_WORKER = """
import pathlib, sys, time
home, there = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1])
(there / "beat-0").touch()
(there / "started-0").touch()
(home / "home").write_text(str(there))
with open(home / "starts", "a") as starts:
    starts.write("x")
while not (home / "die").exists():
    (there / "beat-0").touch()
    time.sleep(0.05)
(home / "die").unlink()
sys.exit(1)
"""


async def test_a_failure_to_start_a_process_stops_no_other_worker(tmp_path, monkeypatch):
    made, start = [], asyncio.create_subprocess_exec

    async def crowded(*command, **options):
        made.append(command)
        if len(made) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", crowded)
    (tmp_path / "worker.py").write_text(_AGING_WORKER)
    loaded = Loaded(settings=Settings(endpoints_file="endpoints.yaml"))
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)]
    (tmp_path / "parent").mkdir()
    parent = workers._Parent(loaded, 1, command, tmp_path / "parent")
    running = asyncio.create_task(parent.run())
    try:
        await eventually((tmp_path / "starts").exists, what="the worker", timeout_s=60.0)
        (tmp_path / "die").touch()
        await eventually(
            lambda: len(made) == 3 or running.done(), what="the parent to try again", timeout_s=60.0
        )
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
