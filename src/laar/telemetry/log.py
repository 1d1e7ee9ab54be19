"""The decision log: a JSON line per settled decision and outcome; bounded, off the request path.

The request path only appends to a bounded queue. A task renders lines in small slices, so that the
event loop is never blocked for long, and a thread writes them in one batch. If the disk is full or
the directory missing, that batch is lost and a problem is counted, but no request fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import orjson

from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown
from laar.slices import Slice

MAX_BYTES = 100 << 20
"""Size at which the log is rotated: about 50,000 decisions in a fleet of five endpoints."""

KEEP = 5
"""Number of old files kept, as ``<log>.1`` (the newest) and so on; at most 600 MiB in total."""

MAX_QUEUED = 20_000
"""Maximum number of waiting lines: enough for a busy picker while a disk stalls for seconds."""

_INTERVAL_S = 0.25
_MODE = 0o640


class DecisionLog:
    """Writes records to a file.

    Args:
        path: path of the file; old files are ``<path>.1`` (the newest) and so on.
        on_problem: called with an error message, or None once writing works again.
    """

    def __init__(self, path: Path, *, on_problem: Callable[[str | None], None]) -> None:
        self._path = path
        self._on_problem = on_problem
        self._queue: deque[DecisionRecord | bytes] = deque()
        self._lines: list[bytes] = []  # lines of the next batch
        self._torn = b""  # a newline, if a full disk has cut off the last line
        self.lines = Counter(written=0, dropped=0)
        """Lines since the start, written or dropped."""

    def add(self, entry: DecisionRecord | bytes) -> None:
        """Queue a settled decision or a line, unless the queue is full."""
        if len(self._queue) < MAX_QUEUED:
            self._queue.append(entry)
        else:
            self.lines["dropped"] += 1

    def judged(self, decision_id: str, correct: bool) -> None:
        """Queue the outcome of a decision whose line was written earlier."""
        line = {"decision_id": decision_id, "correct": correct}
        self.add(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    async def run(self) -> None:
        """Write until cancelled, then write the rest of the queue."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL_S)
                await self.flush()
        finally:
            lines = [*self._lines, *map(self._line, self._queue)]
            self._queue.clear()
            if lines:
                self._note(len(lines), await asyncio.to_thread(self._write, b"".join(lines)))

    async def flush(self) -> None:
        """Write all lines queued now."""
        slice_ = Slice()
        for _ in range(len(self._queue)):
            self._lines.append(self._line(self._queue.popleft()))
            await slice_.step()
        lines, self._lines = self._lines, []
        if lines:
            self._note(len(lines), await asyncio.to_thread(self._write, b"".join(lines)))

    def _line(self, entry: DecisionRecord | bytes) -> bytes:
        if isinstance(entry, bytes):
            return entry
        return orjson.dumps(shown(entry), option=orjson.OPT_APPEND_NEWLINE)

    def _note(self, lines: int, fault: str | None) -> None:
        self.lines["written" if fault is None else "dropped"] += lines
        self._on_problem(fault)

    def _write(self, data: bytes) -> str | None:
        """Append to the file, after rotating it if due; return the error message, if any."""
        try:
            self._rotate()
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
            try:
                view = memoryview(self._torn + data)
                while view:
                    view = view[os.write(handle, view) :]
                    self._torn = b"\n" if view else b""
            finally:
                os.close(handle)
        except OSError as error:
            return (
                f"decisions.log {self._path} can't be written ({error.strerror}); these lines are "
                "lost, but the next ones will be tried"
            )
        return None

    def _rotate(self) -> None:
        """Rotate the file if due. Pickers that take over share one log, so one of them moves it."""
        with contextlib.suppress(FileNotFoundError):  # missing, or another has moved it
            if self._path.stat().st_size < MAX_BYTES:
                return
            handle = os.open(self._path, os.O_WRONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(handle), self._path.stat()):
                    old = [Path(f"{self._path}.{number}") for number in range(1, KEEP + 1)]
                    for source, target in reversed([*pairwise([self._path, *old])]):
                        if source.exists():
                            source.replace(target)
            finally:
                os.close(handle)
