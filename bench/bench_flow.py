"""Measure the cost of the queue, the prefill table and batch packing against their targets."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from laar.flow.queue import Item, Queue
from laar.flow.settings import FlowSettings
from laar_lab.sim.engine.prefill_time import PrefillTable
from laar_vllm.packing import Prefill, pack

WAITING = 10_000


def percentiles(title: str, target_us: float, seconds: list[float]) -> None:
    p50, p99 = np.percentile(np.array(seconds) * 1e6, (50, 99))
    print(f"{title:<58} p50 {p50:8.2f} us   p99 {p99:8.2f} us   target p99 {target_us:g} us")


def timed(call: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread, which exclude other work on the machine."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def chunk_seconds(chunk_tokens: int, context_tokens: int) -> float:
    pairs = chunk_tokens * (context_tokens + chunk_tokens / 2)
    return 0.004 + 1.2e-5 * chunk_tokens + 6e-11 * pairs


class Batch:
    """An additive model of batch time, including 4 ms for decodes."""

    def __init__(self) -> None:
        self.seconds = 0.004

    def seconds_with(self, chunk_tokens: int, context_tokens: int) -> float:
        """Return the batch's time with this chunk."""
        return self.seconds + chunk_seconds(chunk_tokens, context_tokens) - 0.004

    def add(self, chunk_tokens: int, context_tokens: int) -> None:
        """Add a chunk to the batch."""
        self.seconds = self.seconds_with(chunk_tokens, context_tokens)


def request(rng: random.Random, number: int, tenants: int, now: float) -> Item:
    is_long = rng.random() < 0.05
    work_s = rng.uniform(10, 100) if is_long else rng.uniform(0.01, 1.0)
    return Item(
        id=number,
        arrival_s=now,
        objective_s=1.0 + 5.0 * work_s,
        work_s=work_s,
        tokens=int(work_s * 10_000),
        body_bytes=10_000,
        is_long=is_long,
        tenant=f"tenant {rng.randrange(tenants)}",
        lane=f"model {rng.randrange(4)}" if tenants > 1 else "",
    )


def bench_queue(tenants: int) -> None:
    """Time a full queue: each round dispatches one request and enqueues another."""
    rng = random.Random(0)
    limits = FlowSettings(max_waiting=WAITING, min_hold_s=3580, max_hold_s=3580)
    queue: Queue[str] = Queue(limits)
    for number in range(WAITING):
        queue.enqueue(request(rng, number, tenants, number * 1e-3), number * 1e-3)
    leave, come, refuse, now = [], [], [], 10.0
    for number in range(WAITING, WAITING + 3000):
        now += 0.01
        room = iter(("endpoint",))
        leave.append(timed(partial(queue.dispatch, now, lambda *_, room=room: next(room, None))))
        one = request(rng, number, tenants, now)
        come.append(timed(partial(queue.enqueue, one, now)))
        refuse.append(timed(partial(queue.dispatch, now, lambda *_: None)))
    label = f"{WAITING} waiting, {tenants} tenants"
    percentiles(f"enqueue ({label})", 100, come)
    percentiles(f"dispatch, one leaves ({label})", 100, leave)
    percentiles(f"dispatch, none leaves ({label})", 100, refuse)


def _look_up(table: PrefillTable, tokens: int) -> None:
    for _ in range(100):
        table.total_s(tokens)


def main() -> None:
    seconds = timed(lambda: PrefillTable.build(chunk_seconds))
    print(f"{'prefill table for 1M tokens':<58} {seconds * 1e3:8.1f} ms   target 1000 ms")
    table = PrefillTable.build(chunk_seconds)
    tokens = [random.Random(0).randrange(1_000_000) for _ in range(2000)]
    percentiles(
        "prefill time look-up (mean of 100)",
        1,
        [timed(partial(_look_up, table, n)) / 100 for n in tokens],
    )
    for tenants in (1, 100, WAITING):
        bench_queue(tenants)
    rng = random.Random(1)
    prefills = [
        Prefill(
            rng.randrange(1, 8000), rng.randrange(0, 100_000), rng.random(), rng.random() < 0.05
        )
        for _ in range(1000)
    ]
    percentiles(
        "pack a batch from 1,000 prefills",
        1000,
        [
            timed(lambda: pack(prefills, Batch(), target_s=0.02, budget_tokens=8192))
            for _ in range(500)
        ],
    )


if __name__ == "__main__":
    main()
