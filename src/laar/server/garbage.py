"""Garbage collection without long pauses: a collection stops the loop, and so every request.

The life of a request leaves no cycle behind, so nearly all memory is freed by reference counts, and
the young generations find the rest (``python -m bench picker --parts pauses``). A collection of all
takes tens of milliseconds in a picker that remembers ten thousand sessions. So it runs while the
picker is at rest; under load every ten minutes, and sooner where memory has grown.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

_YOUNG, _MIDDLE, _NEVER = 700, 5, 1 << 30
"""Objects for a collection of the first generation, such collections for one of the second, and
those for one of all."""
_LOOK_S = 10.0
_AT_REST_S = 60.0
_LONGEST_S = 600.0
_GROWN_BYTES = 64 << 20
_MEMORY = Path("/proc/self/statm")


def keep_young() -> None:
    """Collect only young objects from now on, and those that exist already never.

    Called once the process has started, which may be with the collector off.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def collect_at_rest(is_at_rest: Callable[[], bool]) -> None:
    """Collect everything now and then, until cancelled."""
    last, memory = time.monotonic(), _memory_bytes()
    while True:
        await asyncio.sleep(_LOOK_S)
        passed_s = time.monotonic() - last
        if (
            passed_s > _LONGEST_S
            or (passed_s > _AT_REST_S and is_at_rest())
            or _memory_bytes() > memory + _GROWN_BYTES
        ):
            gc.collect()
            last, memory = time.monotonic(), _memory_bytes()


def _memory_bytes() -> int:
    """Resident memory; 0 where the system does not say."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
