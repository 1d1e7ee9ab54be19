"""Detect by its status whether a file has changed.

Polling the status is the only method that works for an editor's save, for a rename, and for a
Kubernetes ConfigMap mount, where the file itself never changes but a symbolic link above it does.
It costs one system call per poll.
"""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, ...]


def stamp_of(path: Path) -> Stamp:
    """Return the status fields that change with a file's content; empty if it does not exist."""
    try:
        now = path.stat()
    except OSError:
        return ()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
