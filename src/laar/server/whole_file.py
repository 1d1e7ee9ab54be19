"""A file that is replaced atomically, so that readers never see partial content."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from laar.telemetry.problems import Problems

_SETTING = "accuracy.state_file"
INTERVAL_S = 60.0
"""Seconds between saves of a state; a crash loses at most what was learned in that time."""


class WholeFile:
    """A file that any thread or process may replace; the last write wins.

    Args:
        path: path of the file.
        mode: permissions of a new file, before the umask.
    """

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        self.path = path
        self._mode = mode
        self._writing = threading.Lock()

    def write(self, content: Callable[[], bytes]) -> None:
        """Replace the file's content with the result of `content`.

        Raises:
            OSError: the file can't be written; the old content stays.
        """
        # Workers may write the same file concurrently: each has its own temporary name.
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with self._writing:  # a cancelled save continues in its thread
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._mode)
                with os.fdopen(handle, "wb") as file:
                    file.write(content())
                    file.flush()
                    os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)  # left by a fault, it would fill the disk

    async def save(
        self, content: Callable[[], bytes], problems: Problems, source: str, lost: str
    ) -> None:
        """Write in a thread; report a failure, and what is `lost`, instead of raising it."""
        fault = None
        try:
            await asyncio.to_thread(self.write, content)
        except OSError as error:
            fault = f"{self.path} can't be written ({error.strerror}); {lost}"
        problems.report(source, fault)

    def read(self, most_bytes: int) -> bytes:
        """Return the content, or its first `most_bytes` + 1 bytes if it is longer.

        Raises:
            OSError: the file can't be read.
        """
        with self.path.open("rb") as file:
            return file.read(most_bytes + 1)


class StateFile:
    """Keeps outcomes on disk, in a file of JSON.

    Args:
        path: path of the file; None to save nothing.
        take: returns the content; called in a thread.
        problems: receives a problem if the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        take: Callable[[], bytes],
        problems: Problems,
    ) -> None:
        self._file = None if path is None else WholeFile(path)
        self._take = take
        self._problems = problems

    async def keep_saving(self) -> None:
        """Save every `INTERVAL_S`; return at once if no file is set."""
        while self._file is not None:
            await asyncio.sleep(INTERVAL_S)
            await self.save()

    async def save(self) -> None:
        """Write the state, if there is a file; report a failure instead of raising it."""
        if self._file is not None:
            lost = "what is learned will be lost when this process ends"
            await self._file.save(self._take, self._problems, _SETTING, lost)
