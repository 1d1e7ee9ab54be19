"""Parts with real pickers behind a real Envoy: CPU, workers, store outage, killed picker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import psutil

from bench.chaos.guard import Child
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.cpu import cpu_s
from bench.figures import Figures, rank
from bench.sharing.talking import Talkers, Turned, failed, hit_rate, took_s

__all__ = ["cost", "kill", "outage", "workers"]

ENDPOINTS = 4
CLIENTS = 16
WARM_S = 2.0
ROUNDS = 3
TARGET_CPU = 1.15
TARGET_HITS = 0.97
TARGET_WORKERS = 1.7
TARGET_BACK_S = 2.0
WORKER_CLIENTS = 192
"""More than a connection's stream limit, so that Envoy opens several connections."""


@asynccontextmanager
async def _stand(
    *, pickers: int, store: str | None = None, workers: int = 1, deadline_s: float = 900.0
) -> AsyncIterator[Stand]:
    plan = Plan(
        endpoints=(Endpoint(model="m", names=("m",), known=("m",)),) * ENDPOINTS,
        pickers=pickers,
        workers=workers,
        store=Path(store) if store else None,
        engines="bench.instant",
        settings={"shutdown": {"drain_s": 0.5, "grace_s": 2.0}},
    )
    async with standing(plan, deadline_s=deadline_s) as stand:
        if store and workers == 1:
            await _together(stand)
        yield stand


async def _together(stand: Stand) -> None:
    """Wait until every picker knows all others and has little left to send."""
    pickers = range(stand.plan.pickers)
    while not all([await _is_together(stand, n) for n in pickers]):  # noqa: ASYNC110 - a page
        await asyncio.sleep(0.02)


async def _is_together(stand: Stand, index: int) -> bool:
    metrics = await stand.metrics(index)
    return (
        metrics.get("laar_share_connected") == 1.0
        and metrics.get("laar_share_peers") == stand.plan.pickers - 1.0
        and metrics.get("laar_share_waiting_bytes", 0.0) < 4096
    )


def _processes(children: Sequence[Child]) -> list[psutil.Process]:
    found = []
    for child in children:
        process = psutil.Process(child.pid)
        found += [process, *process.children(recursive=True)]
    return found


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(cpu_s(each.pid) for each in processes)


async def cost(figures: Figures, *, store: str, rate: float, seconds: float) -> None:
    """Measure the CPU per request of two pickers with and without sharing, alternately.

    All CPU time of the pickers counts, since waiting to send and receive is also a cost.
    """
    async with AsyncExitStack() as stack:
        sharing = await stack.enter_async_context(_stand(pickers=2, store=store))
        alone = await stack.enter_async_context(_stand(pickers=2))
        sums: dict[str, list[float]] = {"sharing": [], "alone": []}
        hits: dict[str, list[float]] = {"sharing": [], "alone": []}
        for number in range(ROUNDS + 1):
            for name, stand in (("alone", alone), ("sharing", sharing)):
                processes = _processes(stand.pickers)
                talkers = Talkers(stand.url, clients=CLIENTS, rate=rate, seed=number)
                before = _cpu_s(processes)
                ended = await _answered(talkers, seconds)
                spent = _cpu_s(processes) - before
                if number:  # the first round warms up
                    sums[name].append(spent / len(ended))
                    hits[name].append(hit_rate(ended))
        for name in sums:
            figures.add("cost", f"two pickers, {name}", 1e6 * _mean(sums[name]), "us a request")
            figures.add("cost", f"two pickers, {name}: hit rate", _mean(hits[name]), "")
        ratio = _mean(sums["sharing"]) / _mean(sums["alone"])
        figures.add("cost", "CPU with sharing / without", ratio, "x", at_most=TARGET_CPU)


async def workers(figures: Figures, *, store: str, seconds: float) -> None:
    """Compare two workers with one, at full speed.

    Envoy, the clients and the endpoints need CPU as well. With four cores or more, the picker gets
    two to itself; with fewer, all share them and throughput cannot double. On a saturated machine
    the latency hides cache hits, so the hit rate is judged at half of one worker's rate.
    """
    cores = sorted(os.sched_getaffinity(0))
    apart = len(cores) >= 4
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(_stand(pickers=1))
        two = await stack.enter_async_context(_stand(pickers=1, store=store, workers=2))
        stands = {1: one, 2: two}
        await _workers_meet(stands[2])
        if apart:
            _pin([psutil.Process()], cores[2:])
            for stand in stands.values():
                around = [child for child in (stand.envoy, stand.engines) if child is not None]
                _pin(_processes(around), cores[2:])
                _pin(_processes(stand.pickers), cores[:2])
        rates: dict[int, list[float]] = {1: [], 2: []}
        costs: dict[int, list[float]] = {1: [], 2: []}
        busy: dict[int, list[float]] = {1: [], 2: []}
        hits: dict[int, list[float]] = {1: [], 2: []}
        for number in range(ROUNDS + 1):
            for many, stand in stands.items():
                processes = _processes(stand.pickers)
                talkers = Talkers(stand.url, clients=WORKER_CLIENTS, seed=number)
                before, began = _cpu_s(processes), time.monotonic()
                ended = await _answered(talkers, seconds if number else WARM_S)
                took = time.monotonic() - began
                if number:
                    rates[many].append(len(ended) / took)
                    costs[many].append((_cpu_s(processes) - before) / len(ended))
                    busy[many].append(hit_rate(ended))
        half = _mean(rates[1]) / 2.0
        for number in range(ROUNDS):
            for many, stand in stands.items():
                talkers = Talkers(stand.url, clients=WORKER_CLIENTS, rate=half, seed=100 + number)
                ended = await _answered(talkers, seconds)
                hits[many].append(hit_rate(ended))
        if apart:
            _pin([psutil.Process()], cores)
    for many in (1, 2):
        figures.add("workers", f"{many}: requests", _mean(rates[many]), "a second")
        figures.add("workers", f"{many}: CPU of the picker", 1e6 * _mean(costs[many]), "us each")
        figures.add("workers", f"{many}: hit rate, at full speed", _mean(busy[many]), "")
        figures.add(
            "workers", f"{many}: hit rate, at half of one worker's speed", _mean(hits[many]), ""
        )
    gain = _mean(rates[2]) / _mean(rates[1])
    name = "requests a second, two workers / one"
    if apart:
        figures.add("workers", name, gain, "x", at_least=TARGET_WORKERS)
    else:
        figures.add("workers", f"{name}, the cores shared with Envoy and clients", gain, "x")
    per_cpu_second = 2.0 * _mean(costs[1]) / _mean(costs[2])
    figures.add(
        *("workers", "requests per CPU second of a core, two workers / one", per_cpu_second, "x"),
        at_least=TARGET_WORKERS,
    )
    ratio = _mean(hits[2]) / _mean(hits[1])
    name = "hit rate, two workers / one, at half speed"
    figures.add("workers", name, ratio, "x", at_least=TARGET_HITS)


async def _answered(talkers: Talkers, seconds: float) -> list[Turned]:
    """Run clients for a while; return their requests, and raise if one failed."""
    ended = await talkers.during(seconds)
    if failed(ended):
        raise RuntimeError(f"{failed(ended)} of {len(ended)} requests failed")
    return ended


async def _workers_meet(stand: Stand) -> None:
    while (await stand.metrics(0)).get("laar_share_peers") != 1.0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _pin(processes: Sequence[psutil.Process], cores: Sequence[int]) -> None:
    """Pin all threads of the processes to these cores."""
    for process in processes:
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


@asynccontextmanager
async def _talking(url: str, rate: float) -> AsyncIterator[Talkers]:
    talkers = Talkers(url, clients=CLIENTS, rate=rate)
    asking = asyncio.create_task(talkers.run())
    try:
        yield talkers
    finally:
        talkers.stop()
        await asking


async def outage(figures: Figures, *, store: str, rate: float, seconds: float) -> None:
    """Measure an outage: the store stops under load and comes back empty."""
    async with _stand(pickers=2, store=store) as stand, _talking(stand.url, rate) as talkers:
        await asyncio.sleep(WARM_S)
        marks = [time.monotonic()]
        await asyncio.sleep(max(3.0, seconds / 3.0))
        marks.append(time.monotonic())
        assert stand.store is not None
        await stand.store.end(signal.SIGKILL)
        await asyncio.sleep(seconds)
        marks.append(time.monotonic())
        connected = [(await stand.metrics(n))["laar_share_connected"] for n in (0, 1)]
        if any(connected):
            raise RuntimeError("a picker did not notice that the store is gone")
        await stand.start_store()
        back = time.monotonic()
        await _together(stand)
        merged_s = time.monotonic() - back
        await asyncio.sleep(2.0)
    before, during = (
        [one for one in talkers.ended if from_s <= one.began_s < until_s]
        for from_s, until_s in pairwise(marks)
    )
    after = [one for one in talkers.ended if one.began_s >= marks[2]]
    figures.add("outage", "failed", failed(during) + failed(after), "requests", at_most=0)
    for share in (0.5, 0.99):
        ratio = rank(took_s(during), share) / rank(took_s(before), share)
        figures.add("outage", f"time of a request, p{100 * share:.0f} / before", ratio, "x")
    slow_s = 2.0 * max(took_s(before))
    slowed = sum(took > slow_s for took in took_s(during))
    name = "slower than twice the slowest request before"
    figures.add("outage", name, slowed, f"of {len(during)} requests", at_most=0)
    figures.add("outage", "hit rate before", hit_rate(before), "")
    figures.add("outage", "hit rate without the store", hit_rate(during), "")
    figures.add("outage", "merged after its return", merged_s, "s", at_most=TARGET_BACK_S)


async def kill(figures: Figures, *, store: str, rate: float, seconds: float) -> None:
    """Measure a kill: one of two pickers dies under load and restarts later."""
    async with _stand(pickers=2, store=store) as stand, _talking(stand.url, rate) as talkers:
        await asyncio.sleep(WARM_S)
        from_s = time.monotonic()
        await asyncio.sleep(seconds)
        killed_s = time.monotonic()
        await stand.pickers[1].end(signal.SIGKILL)
        await asyncio.sleep(TARGET_BACK_S + seconds)
        again_s = time.monotonic()
        await stand.restart_picker(1)
        await _together(stand)
        back_s = time.monotonic()
        await asyncio.sleep(seconds)
    ended = talkers.ended
    before = [one for one in ended if from_s <= one.began_s < killed_s]
    after = [one for one in ended if killed_s + TARGET_BACK_S <= one.began_s < again_s]
    back = [one for one in ended if one.began_s >= back_s]
    lost = [one for one in ended if one.began_s >= killed_s]
    figures.add("kill", "failed", failed(lost), f"of {len(lost)} requests", at_most=0)
    figures.add("kill", "hit rate before", hit_rate(before), "")
    name = f"hit rate from {TARGET_BACK_S:g} s after it / before"
    share = hit_rate(after) / hit_rate(before)
    figures.add("kill", name, share, "x", at_least=TARGET_HITS)
    share = hit_rate(back) / hit_rate(before)
    figures.add("kill", "hit rate with a new one / before", share, "x", at_least=TARGET_HITS)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
