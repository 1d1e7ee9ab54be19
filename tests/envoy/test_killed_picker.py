"""If a picker of `laar serve --with-envoy` is killed, Envoy serves until the next one decides."""

from pathlib import Path

import psutil
import pytest
from bench.bench_kills import _settings, alone, measure

from laar_lab.live.processes import LaarProcess
from support import RecordingUpstream, eventually, free_port

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]


async def test_a_killed_picker_fails_no_request_and_is_replaced(
    tmp_path: Path, envoy_binary: Path
) -> None:
    run = await measure(tmp_path, kills=2, rate=20.0, pause_s=2.5, seed=1)
    assert not run.failed
    assert run.undecided, "Envoy served while the picker was gone"
    assert run.in_a_row > 0, "the next picker decides"
    assert (tmp_path / "laar.log").read_text().count("restarting it in") == 2


async def test_requests_for_four_models_outlive_a_picker_that_hangs(
    tmp_path: Path, envoy_binary: Path
) -> None:
    run = await alone(tmp_path, "SIGSTOP", "gateway", requests=60, seed=1)
    assert not run.failed
    assert len(run.undecided) > 40


@pytest.mark.parametrize("killed", ["Envoy", "the parent"])
async def test_if_envoy_or_the_parent_is_killed_all_end(
    tmp_path: Path, envoy_binary: Path, killed: str
) -> None:
    """The kernel kills Envoy if memory runs out, without a message in Envoy's log."""
    log = tmp_path / "laar.log"
    async with RecordingUpstream() as upstream:
        ports = [free_port() for _ in range(5)]
        command = _settings(tmp_path, {upstream.address: "m"}, ports[0], ports[1:])
        async with LaarProcess(command, log) as process:
            await eventually(
                lambda: "Envoy listens on" in log.read_text(), timeout_s=60, what="Envoy to listen"
            )
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
