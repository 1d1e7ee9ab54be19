"""A short run of `make chaos`: real Envoy, two pickers, six endpoints, faults by a fixed seed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 20
DEADLINE_S = 200

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 20)]


PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("src", "lab/src", "."))


async def chaos(*options):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "chaos", *options),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)  # the guard then ends its children
            await process.wait()
    return process.returncode, told.decode()


async def test_every_promise_holds_during_a_schedule_of_faults(tmp_path, envoy_binary):
    figures = tmp_path / "chaos.json"
    options = ("--seconds", str(SECONDS), "--seed", "7", "--shapes", "standalone")
    status, told = await chaos(*options, "--json", str(figures))
    assert status == 0, told
    (run,) = orjson.loads(figures.read_bytes())["runs"]
    assert run["faults"] >= 10
    assert len({cost["name"] for cost in run["costs"]}) >= 8
    ends = run["ends_of_requests"]
    # A fleet that answered nothing would keep all promises, too.
    assert ends["right"] >= 0.6 * sum(ends.values())
