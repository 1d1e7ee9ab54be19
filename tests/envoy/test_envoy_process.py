from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from laar.envoy.endpoints_file import write_eds
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from support import eventually, free_port
from support.bootstraps import rendered

pytestmark = pytest.mark.envoy

_PARENT = """
import asyncio, json, signal, sys
from pathlib import Path
from laar.envoy.process import EnvoyProcess

def draining():
    print("draining", flush=True)

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, draining)
    directory = Path(sys.argv[1])
    bootstrap = json.loads((directory / "given.json").read_text())
    async with EnvoyProcess(bootstrap, directory) as envoy:
        print(envoy.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def options(envoy_binary: Path, tmp_path: Path) -> BootstrapOptions:
    path = tmp_path / "endpoints.json"
    write_eds(path, [])
    return BootstrapOptions(eds_path=str(path), listen_port=0, ready_port=0, admin_port=0)


def is_envoy(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"envoy" in command


async def test_the_probe_listener_shows_nothing_else_of_the_admin_port(options, tmp_path, http):
    options = replace(options, admin_port=free_port())
    async with EnvoyProcess(rendered("standalone", options), tmp_path) as envoy:
        probes = envoy.url("probes")
        async with http.get(f"{probes}/ready") as response:
            assert response.status == 200
        async with http.get(f"{probes}/stats/prometheus") as response:
            assert "envoy_cluster_membership_total" in await response.text()
        for path in (
            "/",
            "/stats",
            "/quitquitquit",
            "/config_dump",
        ):
            async with http.post(f"{probes}{path}") as response:
                assert response.status == 404
        async with http.post(f"{envoy.admin_url}/healthcheck/fail"):
            pass
        async with http.get(f"{probes}/ready") as response:
            assert response.status == 503


async def test_a_stopped_envoy_is_killed_at_the_deadline(options, tmp_path, monkeypatch):
    monkeypatch.setattr("laar.envoy.process.STOP_TIMEOUT_S", 0.1)
    async with EnvoyProcess(rendered("sidecar", options), tmp_path) as envoy:
        pid = envoy.pid
        os.kill(pid, signal.SIGSTOP)  # SIGTERM stays pending
    assert not is_envoy(pid)


async def test_a_killed_parent_leaves_no_envoy_behind(options, tmp_path):
    (tmp_path / "given.json").write_bytes(orjson.dumps(rendered("sidecar", options)))
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    assert is_envoy(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not is_envoy(pid), what="Envoy ending with its parent")


async def test_envoy_leaves_ctrl_c_to_its_parent(options, tmp_path):
    """A terminal sends SIGINT to a group of processes; Envoy would cut off answers in flight."""
    (tmp_path / "given.json").write_bytes(orjson.dumps(rendered("sidecar", options)))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT, tmp_path),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert parent.stdout is not None
    try:
        pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
        os.killpg(parent.pid, signal.SIGINT)
        assert await asyncio.wait_for(parent.stdout.readline(), 20) == b"draining\n"
        await asyncio.sleep(0.5)
        assert is_envoy(pid)
    finally:
        parent.kill()
        await parent.wait()
