"""Detects by its status whether a file has changed.

To ask for the status now and then is the one way that works for an editor's save, for a rename, and
for a Kubernetes ConfigMap mount, where the file itself never changes but a symbolic link above it
does; and it costs one system call.
"""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, ...]


def stamp_of(path: Path) -> Stamp:
    """Return fields of the status that change with the content; empty without a file."""
    try:
        now = path.stat()
    except OSError:
        return ()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
