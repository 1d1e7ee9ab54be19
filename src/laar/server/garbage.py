"""Garbage collection without long pauses: a collection stops the loop, and so every request.

The life of a request leaves no cycle behind, so nearly all memory is freed by reference counts, and
the young generations find the rest (``python -m bench picker --parts pauses``). A collection of all
takes tens of milliseconds in a picker that remembers ten thousand sessions. So it runs while the
picker is at rest, and once an hour where it never is.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

__all__ = ["collect_at_rest", "keep_young"]

_YOUNG, _MIDDLE, _NEVER = 700, 5, 1 << 30
"""Objects for a collection of the first generation, such collections for one of the second, and
those for one of all."""
_LOOK_S = 30.0
_AT_REST_S = 600.0
_LONGEST_S = 3600.0


def keep_young() -> None:
    """Has only young objects collected from now on; permanent ones not even by `collect_at_rest`.

    Called once the process has started.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def collect_at_rest(is_at_rest: Callable[[], bool]) -> None:
    """Collects everything now and then, until cancelled."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_S)
        passed_s = time.monotonic() - last
        if passed_s > _LONGEST_S or (passed_s > _AT_REST_S and is_at_rest()):
            gc.collect()
            last = time.monotonic()
