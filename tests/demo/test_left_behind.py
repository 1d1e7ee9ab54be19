"""Commands that start processes leave none running, however they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from laar_command import start

from support import eventually

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.envoy,
    pytest.mark.usefixtures("envoy_binary"),
    pytest.mark.timeout(200),
]

UP = ("up", "--port", "0", "--time-scale", "0.05")
DEMO = ("demo",)
AT_LEAST = 3
"""Engines (one or more processes), a picker and Envoy."""


def children(pid: int) -> list[int]:
    """Return the children of a process's main thread, which starts all of them."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    try:
        # The state follows the name, which is in brackets and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("arguments", "number", "status"),
    [
        pytest.param(UP, signal.SIGTERM, 130, id="up-term"),
        pytest.param(DEMO, signal.SIGTERM, 130, id="demo-term", marks=pytest.mark.slow),
        pytest.param(UP, signal.SIGINT, 130, id="up-ctrl-c", marks=pytest.mark.slow),
        pytest.param(UP, signal.SIGKILL, -9, id="up-kill"),
    ],
)
async def test_an_ended_command_leaves_no_process_behind(
    arguments: Sequence[str], number: signal.Signals, status: int
) -> None:
    process = await start(*arguments)
    try:
        await eventually(
            lambda: len(children(process.pid)) >= AT_LEAST, what="processes to start", timeout_s=60
        )
        started = children(process.pid)
        process.send_signal(number)
        # The children share its output, so this waits for them.
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == status, said.decode()
        await eventually(
            lambda: not any(map(is_alive, started)), what="all of them to end", timeout_s=30
        )
    finally:
        for pid in (process.pid, *children(process.pid)):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_a_running_fleet_ends_with_its_command() -> None:
    process = await start(*UP)
    said = b""

    async def until_ready() -> None:
        nonlocal said
        assert process.stdout is not None
        while b"Ctrl-C stops everything" not in said:
            said += await process.stdout.read(1 << 16)
            assert not process.stdout.at_eof(), said.decode()

    await asyncio.wait_for(until_ready(), 90)
    started = children(process.pid)
    assert len(started) == 7  # five endpoints, a picker and Envoy
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert not any(map(is_alive, started))
