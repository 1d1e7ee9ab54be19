"""Child processes: start them, wait for them, and leave none behind.

A command stops them when it ends; if it is killed, the kernel does (`dying_with_us`).
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp

from laar.envoy.process import dying_with_us, end_process
from laar.errors import LaarError

START_TIMEOUT_S = 180.0
"""Five interpreters take about six seconds to start on two cores; thirty times that is a hang, even
on a busy machine."""
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_LOG_TAIL_CHARS = 4000


_PORTS = range(18_000, 32_000)
"""Below Linux's ephemeral ports, so a free port is not taken by an outgoing connection."""


def free_ports(count: int, among: Sequence[int] = _PORTS) -> list[int]:
    """Return distinct loopback ports that were free a moment ago.

    Args:
        count: number of ports.
        among: ports to choose from.

    Raises:
        LaarError: too few ports are free.
    """
    found: list[int] = []
    first = random.randrange(len(among))
    for port in (*among[first:], *among[:first]):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LaarError(f"fewer than {count} of the ports {min(among)} to {max(among)} are free")


class Program:
    """A program as a child process; use as an async context manager.

    Args:
        command: the program and its arguments.
        log_path: file for its output.
    """

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._command = command
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id; only while running."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        with self._log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_us(self._command), stdout=log, stderr=log
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Terminate the process, and kill it if it does not stop."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        await end_process(process, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        assert self._process is not None
        self._process.kill()

    def check_alive(self) -> None:
        """Check that the process has not exited.

        Raises:
            LaarError: it has exited; the message includes the end of its log.
        """
        if self._process is not None and self._process.returncode is not None:
            tail = self._log_path.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
            raise LaarError(f"`{' '.join(self._command)}` ended:\n{tail}")


def laar_process(arguments: Sequence[str], log_path: Path) -> Program:
    """Return a `laar` command as a child process."""
    return Program((sys.executable, "-m", "laar.cli", *arguments), log_path)


async def wait_for(
    url: str,
    *programs: Program,
    body: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait until a URL answers a GET, or a POST of the body if there is one, with 200.

    Raises:
        LaarError: one of the programs ended, or there was no such answer in time.
    """
    method = "GET" if body is None else "POST"
    async with aiohttp.ClientSession(headers=headers) as session:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    for program in programs:
                        program.check_alive()
                    try:
                        async with session.request(method, url, json=body) as answer:
                            if answer.status == 200:
                                return
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise LaarError(f"{url} was not ready after {START_TIMEOUT_S:g} s") from None


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its threads, from its clock; 0 if it has ended."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return 0.0
