"""Keep freed memory in the process, and collect garbage without long pauses.

A body of 400 KB passes through several copies. glibc returns freed memory to the system as soon as
a contiguous megabyte is free, and the next request must fault it in again, page by page.

A garbage collection stops the event loop. Requests leave no reference cycles behind, so reference
counting frees nearly all memory, and the young generations find the remaining cycles. A full
collection takes tens of milliseconds in a picker that remembers ten thousand sessions. So it runs
only if memory has grown. While the picker is idle, and every ten minutes under load, only the
objects made since the last collection are visited.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

_KEPT_BYTES = 32 << 20
"""Maximum amount of freed memory kept at the end of the heap: 16 copies of the longest body that
the context hook reads by default."""

_OWN_BYTES = 32 << 20
"""Size from which a block is mapped separately, and returned once freed; the maximum of glibc's
dynamic threshold."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h

_YOUNG, _MIDDLE, _NEVER = 250, 1, 1 << 30
"""Thresholds of `gc`: new objects per young collection, young collections per middle collection,
middle collections per full collection. Small ones cost as much CPU in total, but stop the event
loop for less: a middle collection visits 17,000 objects for 12 ms with 700 and 5."""
_LOOK_S = 10.0
_AT_REST_S = 60.0
_LONGEST_S = 600.0
_GROWN_BYTES = 64 << 20
_MEMORY = Path("/proc/self/statm")


def keep_freed() -> None:
    """Keep freed memory for later requests; do nothing if the allocator is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES)


def keep_young() -> None:
    """Collect only young objects from now on, and freeze all existing objects.

    Call it once the process has started; the collector may be disabled until then.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def collect_at_rest(is_at_rest: Callable[[], bool]) -> None:
    """Run collections when due, until cancelled."""
    last, memory = time.monotonic(), _memory_bytes()
    while True:
        await asyncio.sleep(_LOOK_S)
        passed_s = time.monotonic() - last
        has_grown = _memory_bytes() > memory + _GROWN_BYTES
        is_due = passed_s > _LONGEST_S or (passed_s > _AT_REST_S and is_at_rest())
        if has_grown or is_due:
            if has_grown:
                gc.unfreeze()
            gc.collect()
            gc.freeze()
            last = time.monotonic()
            if has_grown:
                memory = _memory_bytes()


def _memory_bytes() -> int:
    """Return the resident memory; 0 if the system does not report it."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
