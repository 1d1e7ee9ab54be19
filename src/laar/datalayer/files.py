"""Read bounded files, replace files whole, and detect from a file's status whether it has changed.

Polling the status is the only method that works for an editor's save, for a rename, and for a
Kubernetes ConfigMap mount, where the file itself never changes but a symbolic link above it does.
It costs one system call per poll.
"""

from __future__ import annotations

import errno
import math
import os
import select
from pathlib import Path

MAX_FILE_BYTES = 4 << 20
"""Maximum size of settings, endpoint lists (400 bytes for each of ten thousand endpoints),
certificates, keys and tokens. A browser's CAs take 230 KB."""
_PIPE_MS = 10_000
"""Milliseconds to wait for each chunk read from a pipe."""

Stamp = tuple[int, ...]


class Settling:
    """Decides when to read files that change: once two looks find the same.

    So none is read half-written. Files that keep changing are read every `LONGEST_S` seconds; then
    the reader has to check `is_overwritten`.
    """

    LONGEST_S = 5.0

    def __init__(self, seen: object) -> None:
        self._seen = seen
        self._since = math.inf

    def is_due(self, found: object, read: object, now: float) -> bool:
        """Return whether to read files with these stamps, if those with stamps `read` were."""
        settled, self._seen = found == self._seen, found
        self._since = min(self._since, now) if found != read else math.inf
        due = found != read and (settled or now - self._since >= self.LONGEST_S)
        if due:
            self._since = math.inf
        return due


def stamp_of(path: Path) -> Stamp:
    """Return the status fields that change with a file's content; empty if it does not exist."""
    try:
        now = path.stat()
    except (OSError, ValueError):  # a NUL in the path
        return ()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def is_overwritten(before: Stamp, now: Stamp) -> bool:
    """Return whether a file was written to in place; one that was replaced was read whole."""
    return before != now and before[:2] == now[:2]


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return a file's content, without waiting forever for a device or a pipe.

    Raise `OSError` if it can't be read, or is larger than `max_bytes`, or a pipe stalls.
    """
    poll, content = select.poll(), b""
    try:
        file = open(path, "rb", 0, opener=lambda p, mode: os.open(p, mode | os.O_NONBLOCK))  # noqa: SIM115
    except ValueError as fault:  # a NUL in the path
        raise OSError(errno.EINVAL, str(fault), str(path)) from None
    with file:
        poll.register(file)
        while poll.poll(_PIPE_MS):
            chunk = file.read(max_bytes + 1 - len(content))
            content += chunk
            if not chunk:
                return content
            if len(content) > max_bytes:
                raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    raise OSError(errno.ETIMEDOUT, "nothing is written to this pipe", str(path))


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file, so that readers never see partial content.

    By default, only its owner can read it; the umask applies to `mode`.

    Other threads and processes may write the same file; the last one wins. Raise `OSError` if the
    file can't be written; the old content stays.
    """
    if path.is_char_device() or path.is_fifo():  # such as /dev/null
        raise OSError(errno.EINVAL, "not a regular file")
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # left after an error, it would fill the disk
