"""Replace files atomically, so that readers never see partial content."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from laar.telemetry.problems import Problems


class WholeFile:
    """A file readable by its owner that any thread or process may replace; the last write wins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tag = os.urandom(8).hex()
        self._writing = threading.Lock()

    def write(self, content: Callable[[], bytes]) -> None:
        """Replace the file's content with the result of `content`.

        Raises:
            OSError: the file can't be written; the old content stays.
        """
        if self.path.is_char_device() or self.path.is_fifo():  # such as /dev/null
            raise OSError(errno.EINVAL, "not a regular file")
        # Others may write the same file: workers, and containers, where each process has PID 1.
        temporary = self.path.with_name(f".{self.path.name}.{self._tag}.new")
        with self._writing:  # a cancelled save continues in its thread
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(content())
                    file.flush()
                    os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)  # left after an error, it would fill the disk

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
