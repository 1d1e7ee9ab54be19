"""Parts without Envoy: the cost of staleness in the lab, and the age and size of batches."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import orjson

from bench.chaos.guard import Guard
from bench.figures import Figures, rank
from bench.sharing.member import Driven, Spec
from laar_lab.suite.case import Case, Pickers, run_case
from laar_lab.suite.table import SUITE

__all__ = ["ages", "staleness"]

TARGET_SHARE = 0.03
TARGET_AGE_MS = 20.0
TARGET_BYTES = 2048
CASES = ("art-x2", "agents-8k")
"""Conversations of 18,000 tokens; agents that share one prompt."""
SEEDS = (1, 2)
MINUTES_SHARE = 0.5
GUARD_S = 900.0
"""Seconds until a hanging run is killed; far beyond every part's deadline."""
WAYS = {
    "4 pickers, 20 ms": Pickers(4, 0.02),
    "4 pickers, nothing shared": Pickers(4, None),
}


async def staleness(figures: Figures) -> None:
    """Measure the cost of stale information about other pickers, in virtual time.

    This is a sample (few seeds, one delay) of the `many-pickers` experiment, which tests the claim.
    """
    cases: dict[str, Case] = {case.name: case for case in SUITE}
    for name in CASES:
        alone = await _means(cases[name], None)
        for way, pickers in WAYS.items():
            many = await _means(cases[name], pickers)
            for what, unit, more in (
                ("ttft_p95_s", "x one picker's TTFT p95", many["ttft_p95_s"]),
                ("hit_rate", "x one picker's hit rate", many["hit_rate"]),
            ):
                figures.add("staleness", f"{name}, {way}", more / alone[what], unit)


async def _means(case: Case, pickers: Pickers | None) -> dict[str, float]:
    runs = []
    for seed in SEEDS:
        runs.append(run_case(case, "laar", seed, share=MINUTES_SHARE, pickers=pickers))
        await asyncio.sleep(0)  # let the part's deadline expire
    return {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}


async def ages(figures: Figures, *, store: str | None, rate: float, seconds: float) -> None:
    """Measure age, bytes and CPU of sharing between processes, at a steady total rate."""
    with tempfile.TemporaryDirectory(prefix="laar-bench-") as directory:
        place = Path(directory)
        with Guard(place, deadline_s=GUARD_S) as guard:
            try:
                alone = await _members(guard, "", 2, rate, seconds)
                alone_s = _cpu_s(alone)
                figures.add("age", "a decision and its end alone", alone_s * 1e6, "us of CPU")
                if store is None:
                    raise RuntimeError("no redis-server and no valkey-server is installed")
                socket = place / "store"
                options = ("--unixsocket", socket, "--dir", place, "--save", "")
                await guard.start("store", [store, "--port", "0", *options])
                while not socket.exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.01)
                for count in (2, 3, 4):
                    driven = await _members(guard, str(socket), count, rate, seconds)
                    name = f"{Path(store).name}, {count} pickers"
                    _show(figures, name, driven, alone_s)
            finally:
                await guard.kill_all()


async def _members(
    guard: Guard, path: str, count: int, rate: float, seconds: float
) -> list[Driven]:
    began, children = time.monotonic(), []
    for number in range(count):
        spec = Spec(path=path, number=number, count=count, rate=rate, seconds=seconds)
        out = guard.directory / f"{'store' if path else 'alone'}-{count}-{number}.json"
        command = [
            sys.executable,
            "-m",
            "bench.sharing.member",
            orjson.dumps(asdict(spec)).decode(),
        ]
        children.append((await guard.start(out.stem, [*command, out]), out))
    for child, _ in children:
        await child.ended()
    try:
        driven = [Driven(**orjson.loads(out.read_bytes())) for _, out in children]
    except FileNotFoundError:
        logs = "\n".join(child.log_tail(500) for child, out in children if not out.exists())
        took_s = time.monotonic() - began
        raise RuntimeError(f"a picker ended early, after {took_s:.0f} s: {logs}") from None
    return driven


def _cpu_s(driven: list[Driven]) -> float:
    """Return the CPU seconds per decision, minus what the processes use when idle."""
    spent = sum(one.cpu_s - one.idle_share * one.took_s for one in driven)
    return spent / sum(one.decided for one in driven)


def _show(figures: Figures, name: str, driven: list[Driven], alone_s: float) -> None:
    decided = sum(one.decided for one in driven)
    ages_ms = [age for one in driven for age in one.ages_ms]
    waits_ms = [wait for one in driven for wait in one.waits_ms]
    # Wait and transfer are measured separately, and the sum of two p99 exceeds the p99 of the sum.
    age_ms = rank(ages_ms, 0.99) + rank(waits_ms, 0.99)
    rate = decided / max(one.took_s for one in driven)
    figures.add("age", f"{name}: decisions of all", rate, "a second")
    figures.add("age", f"{name}: age at peers, p50", rank(ages_ms, 0.5), "ms after sending")
    figures.add(
        *("age", f"{name}: age at peers, p99, including the wait", age_ms, "ms"),
        at_most=TARGET_AGE_MS,
    )
    sent = sum(one.sent_bytes for one in driven)
    figures.add("age", f"{name}: sent", sent / decided, "bytes a decision", at_most=TARGET_BYTES)
    cost_us = 1e6 * (_cpu_s(driven) - alone_s)
    figures.add("age", f"{name}: additional CPU", cost_us, "us a decision")
    idle = 100.0 * statistics.fmean(one.idle_share for one in driven)
    figures.add("age", f"{name}: idle", idle, "% of a core each")
