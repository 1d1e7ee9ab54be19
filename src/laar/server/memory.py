"""Make the process keep freed memory.

A body of 400 KB passes through several copies. glibc returns freed memory to the system as soon as
a contiguous megabyte is free, and the next request must fault it in again, page by page.
"""

from __future__ import annotations

import ctypes

_KEPT_BYTES = 32 << 20
"""Maximum freed memory kept at the end of the heap: 16 copies of the longest body that the context
hook reads by default."""

_OWN_BYTES = 32 << 20
"""Size from which a block is mapped separately, and returned once freed; the maximum of glibc's
dynamic threshold."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed() -> None:
    """Keep freed memory for later requests; do nothing if the allocator is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES)
