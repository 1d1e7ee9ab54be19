"""Child processes that end with the harness, however it ends.

All children are in the process group of a small guard process, which waits for the end of its
standard input. The kernel closes that pipe when the harness ends, even by SIGKILL; the guard then
kills the group, including stopped processes. It also does so at a deadline, so that a hanging
harness leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Child", "Guard"]

_GUARD = """
import os, select, signal, sys
os.setpgid(0, 0)
print(os.getpid(), flush=True)
select.select([sys.stdin], [], [], float(sys.argv[1]))
os.killpg(0, signal.SIGKILL)
"""
STOP_TIMEOUT_S = 10.0


class Guard:
    """The children of one run; a context manager.

    Args:
        directory: directory for the children's logs.
        deadline_s: seconds until all children are killed.
    """

    def __init__(self, directory: Path, *, deadline_s: float) -> None:
        self.directory = directory
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self.group = 0
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(self._deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.group = int(self._process.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait()

    async def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a command with its output in ``NAME.log``."""
        log_path = self.directory / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                process_group=self.group,
            )
        child = Child(name, process, log_path)
        self._children.append(child)
        return child

    async def kill_all(self) -> None:
        """Kill all children and wait for them."""
        for child in self._children:
            child.send(signal.SIGKILL)
        for child in self._children:
            await child.ended()


class Child:
    """A process of the stand."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self._process = process
        self._log_path = log_path
        self.started_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process runs or is stopped."""
        return self._process.returncode is None

    def send(self, number: int) -> None:
        """Send a signal; ignored if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self, number: int = signal.SIGTERM, *, within_s: float = STOP_TIMEOUT_S) -> None:
        """Terminate the process with a signal; kill it if it does not end in time."""
        if not self.alive:
            return
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()

    async def ended(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    def limit_files(self, size_bytes: int | None) -> None:
        """Make writes that grow a file beyond `size_bytes` fail; None for no limit."""
        limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, hard))

    def memory_bytes(self) -> int:
        """Return the resident memory; 0 if the process has ended."""
        try:
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return 0

    def log_tail(self, chars: int = 3000) -> str:
        """Return the end of the process's output."""
        return self._log_path.read_text(errors="replace")[-chars:]
