"""No process that a harness starts outlives it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from bench.chaos.guard import Guard

from support import eventually

ROOT = Path(__file__).parents[2]
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
HARNESS = """
import asyncio, signal, sys
from pathlib import Path
from bench.chaos.guard import Guard

async def main():
    with Guard(Path(sys.argv[1]), deadline_s=600) as guard:
        children = [await guard.start(name, sys.argv[2:]) for name in ("one", "two")]
        children[1].send(signal.SIGSTOP)
        print(*(child.pid for child in children), flush=True)
        await asyncio.sleep(600)

# A shell that runs the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


def gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_children_end_with_the_harness_even_if_they_are_stopped(tmp_path, number):
    harness = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HARNESS, str(tmp_path), *SLEEP),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        pids = [int(word) for word in (await harness.stdout.readline()).split()]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
    finally:
        harness.send_signal(number)
        await harness.wait()
    await eventually(lambda: all(gone(pid) for pid in pids), what="the children's end")


async def test_children_end_at_the_deadline(tmp_path):
    with Guard(tmp_path, deadline_s=0.5) as guard:
        child = await guard.start("one", SLEEP)
        async with asyncio.timeout(20):
            await child.ended()
