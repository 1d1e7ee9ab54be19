"""Measure garbage collector pauses in a picker with a large fleet and many sessions."""

from __future__ import annotations

import gc
import time

from bench.bench_decision import messages, processor, time_answer
from bench.figures import Figures
from laar.server.memory import keep_young

__all__ = ["pauses"]

ENDPOINTS = 1000
SESSIONS = 10_000
MOST_MS = 5.0


async def pauses(figures: Figures) -> None:
    """Measure the longest pause and the total time spent collecting, with a request per session."""
    picker = processor(ENDPOINTS)
    keep_young()  # as `laar serve` does
    took: dict[int, list[float]] = {0: [], 1: [], 2: []}
    began = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        now = time.thread_time()
        if phase == "start":
            began = now
        else:
            took[info["generation"]].append(now - began)

    gc.callbacks.append(watch)
    try:
        spent = 0.0
        for number in range(SESSIONS):
            spent += await time_answer(picker, messages(2_000, number))
    finally:
        gc.callbacks.remove(watch)
    for generation, each in took.items():
        if each:
            named = f"generation {generation}: {len(each)} collections, the longest"
            figures.add("pauses", named, 1000 * max(each), "ms", at_most=MOST_MS)
    every = sum(map(sum, took.values()))
    figures.add("pauses", "all collections / the decisions", every / spent, "x")
