"""CPU time of other processes."""

from __future__ import annotations

import time

__all__ = ["cpu_s"]


def cpu_s(pid: int) -> float:
    """User and system seconds of a process and all its threads, by Linux' clock of it."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
