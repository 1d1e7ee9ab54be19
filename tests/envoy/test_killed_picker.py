"""If a picker of `laar serve --with-envoy` is killed, Envoy serves until the next one decides."""

import asyncio
from pathlib import Path

import psutil
import pytest
import yaml

from laar.envoy.bootstrap import to_yaml
from laar.envoy.options import BootstrapOptions
from laar_lab.live.processes import laar_process
from support import RecordingUpstream, eventually, free_port
from support.bootstraps import rendered

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]


def settings(directory: Path, upstream: RecordingUpstream) -> tuple[str, int, int]:
    """Write settings and bootstrap; return the settings file, and Envoy's and the picker's port."""
    ext_proc, health, admin, listen = (free_port() for _ in range(4))
    eds = directory / "run" / "endpoints.json"
    options = BootstrapOptions(
        picker=f"127.0.0.1:{ext_proc}",
        listen_port=listen,
        ready_port=0,
        admin_port=0,
        eds_path=str(eds),
    )
    (directory / "envoy.yaml").write_text(to_yaml(rendered("sidecar", options)))
    ports = {"ext_proc": ext_proc, "health": health, "admin": admin}
    document = {
        "endpoints": [{"address": upstream.address, "models": ["m"]}],
        "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
        "envoy": {"eds_file": str(eds)},
    }
    (directory / "laar.yaml").write_text(yaml.safe_dump(document))
    return str(directory / "laar.yaml"), listen, ext_proc


def listening(process: psutil.Process) -> set[int]:
    """Return the ports that a process listens on."""
    return {c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN}


async def test_a_killed_picker_fails_no_request_and_is_replaced(
    tmp_path: Path, envoy_binary: Path, http
) -> None:
    log, seen = tmp_path / "laar.log", []

    async def ask() -> None:
        body = {"model": "m", "prompt": "Is it so?"}
        async with http.post(f"http://127.0.0.1:{listen}/v1/completions", json=body) as answer:
            await answer.read()
            seen.append((answer.status, "x-laar-decision-id" in answer.headers))

    async def decides() -> bool:
        await ask()
        return seen[-3:] == [(200, True)] * 3

    async with RecordingUpstream() as upstream:
        config, listen, ext_proc = settings(tmp_path, upstream)
        async with laar_process(("serve", "--with-envoy", "-c", config), log) as process:
            await eventually(lambda: "Envoy listens on" in log.read_text(), what="Envoy to listen")
            await eventually(decides, what="the picker to decide")
            children = psutil.Process(process.pid).children(recursive=True)
            seen.clear()
            (picker,) = (child for child in children if ext_proc in listening(child))
            picker.kill()
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(ask())
            await eventually(decides, what="the next picker to decide")
            assert {status for status, _ in seen} == {200}
            assert (200, False) in seen, "Envoy served while the picker was gone"
            told = " requests went on without the picker's choice"
            await eventually(lambda: told in log.read_text(), what="a line of Envoy's count")
    assert log.read_text().count("restarting it in") == 1


@pytest.mark.parametrize("killed", ["Envoy", "the parent"])
async def test_if_envoy_or_the_parent_is_killed_all_end(
    tmp_path: Path, envoy_binary: Path, killed: str
) -> None:
    """The kernel kills Envoy if memory runs out, without a message in Envoy's log."""
    log = tmp_path / "laar.log"
    async with RecordingUpstream() as upstream:
        config, *_ = settings(tmp_path, upstream)
        async with laar_process(("serve", "--with-envoy", "-c", config), log) as process:
            await eventually(lambda: "Envoy listens on" in log.read_text(), what="Envoy to listen")
            parent = psutil.Process(process.pid)
            children = parent.children(recursive=True)
            envoys = [child for child in children if child.name() == "envoy"]
            for victim in [parent] if killed == "the parent" else envoys:
                victim.kill()
            await eventually(
                lambda: not any(child.is_running() for child in children),
                what="all children to end",
            )
            if killed == "Envoy":
                reason = "Envoy exited with -9"
                await eventually(lambda: reason in log.read_text(), what="the reason for the end")
