"""Freed memory that the process keeps.

A body of 400 KB passes through several copies of its size. glibc gives freed memory back to the
system as soon as a megabyte of it lies together, and the next request has to ask for it again, page
by page.
"""

from __future__ import annotations

import ctypes

_KEPT_BYTES = 32 << 20
"""Freed memory kept at most at the end of the heap: ten copies of the longest body that the context
hook looks at by default, and half as much again."""

_OWN_BYTES = 32 << 20
"""Length of a block from which it has memory of its own, given back once it is freed; the largest
that glibc comes to by itself."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed() -> None:
    """Keep freed memory for later requests; do nothing where the allocator is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES)
