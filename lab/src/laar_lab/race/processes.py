"""Start, await, measure and stop the processes of a race."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from laar.envoy.process import dying_with_us, end_process
from laar.errors import LaarError

_START_S = 60.0
_STOP_S = 10.0
_LOG_TAIL_CHARS = 2000


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its threads, from its clock; 0 if it has ended."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return 0.0


@asynccontextmanager
async def process(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program until the block ends, or this process does."""
    with log.open("wb") as file:
        started = await asyncio.create_subprocess_exec(
            *dying_with_us(tuple(command)), stdout=file, stderr=file
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            await end_process(started, _STOP_S)


async def answers(
    url: str,
    body: Mapping[str, object] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    log: Path | None = None,
    of: asyncio.subprocess.Process | None = None,
) -> None:
    """Wait until a URL answers a GET, or a POST of the body if there is one, with 200.

    Raises:
        LaarError: the process ended, or did not answer in time; the message includes the end of the
            log.
    """
    ends_s = time.monotonic() + _START_S
    async with aiohttp.ClientSession(headers=headers) as session:
        while time.monotonic() < ends_s and (of is None or of.returncode is None):
            try:
                method = "GET" if body is None else "POST"
                async with session.request(method, url, json=body) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise LaarError(f"{url} was not ready{_end_of(log)}")


def _end_of(log: Path | None) -> str:
    return f":\n{log.read_text(errors='replace')[-_LOG_TAIL_CHARS:]}" if log else ""
