"""`laar serve --with-envoy`: the parent restarts its picker, and passes on signals."""

import asyncio
import errno
import signal
import socket
import sys
from pathlib import Path

import pytest
import yaml

from laar.cli.serve import _serve_with_envoy
from laar.errors import SettingError
from laar.server import supervisor
from laar.settings import Loaded, Settings, load
from support import eventually, free_port

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("taken", ["ext_proc", "health", "admin"])
def test_a_port_that_is_taken_is_reported_before_anything_starts(tmp_path, taken):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = dict.fromkeys(("ext_proc", "health", "admin"), 0) | {taken: other.getsockname()[1]}
        listen = {name: f"127.0.0.1:{port or free_port()}" for name, port in ports.items()}
        endpoints = [{"address": "127.0.0.1:1", "models": ["m"]}]
        settings = tmp_path / "laar.yaml"
        settings.write_text(yaml.safe_dump({"endpoints": endpoints, "listen": listen}))
        with pytest.raises(SettingError, match=f"listen.{taken}: can't listen on {listen[taken]}"):
            _serve_with_envoy(load(settings), settings, ())


_SLOW_WORKER = """
import pathlib, signal, sys, time
home = pathlib.Path(sys.argv[1])
def stop(*_):
    time.sleep(1)
    (home / "finished").touch()
    sys.exit()
signal.signal(signal.SIGTERM, stop)
(home / "started").touch()
while True:
    time.sleep(0.05)
"""

_STARTING_WORKER = """
import pathlib, signal, sys, time
home, beat = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1], "beat")
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
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_supervisor import Envoy
from laar.server import supervisor
from laar.settings import load
supervisor._STUCK_S = 0.2
home = Path(sys.argv[1])
command = [sys.executable, str(home / "worker.py"), str(home)]
supervisor.supervise(load(home / "laar.yaml"), command, Envoy())
"""


class Envoy:
    """Stands in for Envoy, which these tests do not need."""

    listens_on = log_path = "nowhere"

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def wait(self):
        await asyncio.Event().wait()

    keep_log_short = report_bypasses = wait

    async def drain(self, limit_s):
        pass


def start_parent(home):
    return asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(home), *(str(Path(__file__).parents[n]) for n in (0, 1))
    )


async def test_the_parent_waits_as_long_as_changed_settings_let_workers_drain(tmp_path):
    def write(grace_s):
        document = {
            "endpoints": [{"address": "127.0.0.1:1", "models": ["m"]}],
            "shutdown": {"drain_s": 0, "grace_s": grace_s},
        }
        (tmp_path / "laar.yaml").write_text(yaml.safe_dump(document))

    write(0)
    (tmp_path / "worker.py").write_text(_SLOW_WORKER)
    parent = await start_parent(tmp_path)
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
    parent = await start_parent(tmp_path)

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
(there / "beat").touch()
with open(home / "starts", "a") as starts:
    starts.write("x")
while not (home / "die").exists():
    (there / "beat").touch()
    time.sleep(0.05)
(home / "die").unlink()
sys.exit(1)
"""


async def test_a_failure_to_start_a_process_does_not_end_the_command(tmp_path, monkeypatch):
    made, start = [], asyncio.create_subprocess_exec

    async def crowded(*command, **options):
        made.append(command)
        if 2 <= len(made) <= 4:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", crowded)
    monkeypatch.setattr(supervisor, "_AGAIN_S", (0.01, 0.1))
    (tmp_path / "worker.py").write_text(_AGING_WORKER)
    loaded = Loaded(settings=Settings(endpoints_file="endpoints.yaml"))
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)]
    (tmp_path / "parent").mkdir()
    parent = supervisor._Parent(loaded, command, supervisor.Home(tmp_path / "parent"), Envoy())
    running = asyncio.create_task(parent.run())
    try:
        await eventually((tmp_path / "starts").exists, what="the worker", timeout_s=60.0)
        (tmp_path / "die").touch()
        await eventually(
            lambda: len(made) > 4 or running.done(), what="the parent to try again", timeout_s=60.0
        )
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
