"""CPU time of other processes."""

from __future__ import annotations

import time

__all__ = ["cpu_s"]


def cpu_s(pid: int) -> float:
    """Return user plus system seconds of a process and its threads, from its Linux CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
