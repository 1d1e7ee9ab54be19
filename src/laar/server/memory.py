"""Make the process keep freed memory.

A body of 400 KB passes through several copies of its size. glibc returns freed memory to the system
as soon as there is a contiguous megabyte of it, and the next request must ask for it again, page
by page.
"""

from __future__ import annotations

import ctypes

_KEPT_BYTES = 32 << 20
"""Maximum freed memory kept at the end of the heap: ten copies of the longest body the context
hook reads by default, and half as much again."""

_OWN_BYTES = 32 << 20
"""Size from which a block is mapped separately, and returned once freed; the largest value that
glibc would reach by itself."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed() -> None:
    """Keep freed memory for later requests; do nothing if the allocator is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES)
