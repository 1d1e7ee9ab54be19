"""Waiting for conditions, never for time to pass."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from laar.datalayer.endpoints_file import split_address
from laar_lab.live import processes

if TYPE_CHECKING:
    from laar.server.runner import Runner

_PORTS = range(10_000, 18_000)
"""All below the ports that the lab's own commands use."""
_given: set[int] = set()
"""Ports that were returned: they may not be bound yet, and must not be returned twice."""


def free_ports(count: int) -> list[int]:
    """Return loopback TCP ports that were free just now; no other worker of this run uses them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = [
        port for port in range(_PORTS.start + worker, _PORTS.stop, workers) if port not in _given
    ]
    if len(mine) < 10 * count:
        _given.clear()
    found = processes.free_ports(count, mine)
    _given.update(found)
    return found


def free_port() -> int:
    """Return a loopback TCP port that was free just now; prefer binding port 0 if possible."""
    return free_ports(1)[0]


async def eventually(
    condition: Callable[[], Awaitable[bool] | bool],
    *,
    what: str = "the condition",
    timeout_s: float = 60.0,
) -> None:
    """Return as soon as ``condition`` holds; fail, naming ``what``, at the deadline.

    A condition that sends requests takes at most half of the time, since other tests run, too.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                began = time.monotonic()
                outcome = condition()
                if outcome if isinstance(outcome, bool) else await outcome:
                    return
                await asyncio.sleep(max(0.01, time.monotonic() - began))
    except TimeoutError as error:
        raise AssertionError(f"waited {timeout_s:g} s for {what}") from error


def port_of(runner: Runner, name: str) -> int:
    """Return the port in a picker's setting `listen.<name>`."""
    return split_address(getattr(runner.picker.settings.listen, name))[1]
