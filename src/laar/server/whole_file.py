"""A file that is replaced as a whole: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path


class WholeFile:
    """Replaces one file, from any thread and beside other processes: the last one's content stays.

    Args:
        path: the file.
        mode: permissions of a new file, before the process's mask.
    """

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        self.path = path
        self._mode = mode
        self._writing = threading.Lock()

    def write(self, content: Callable[[], bytes]) -> None:
        """Replace the file by newly made content.

        Raises:
            OSError: it can't be written; the old content stays.
        """
        # Workers write one file at the same time: each has its own name for the unfinished file.
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with self._writing:  # a save that was cancelled goes on in its thread
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._mode)
            with os.fdopen(handle, "wb") as file:
                file.write(content())
                file.flush()
                os.fsync(file.fileno())  # else a power cut may leave the name on an empty file
            temporary.replace(self.path)

    def read(self, most_bytes: int) -> bytes:
        """Return the content, or one byte more than the most of a longer one.

        Raises:
            OSError: it can't be read.
        """
        with self.path.open("rb") as file:
            return file.read(most_bytes + 1)
