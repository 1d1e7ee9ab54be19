"""Measure what sharing state between pickers costs: CPU per request and hit rate.

Two pickers behind a real Envoy share through a store, and two others do not; they take turns. Run
it on an idle machine; it takes a minute and a half.

    python -m bench sharing

Without `redis-server` or `valkey-server` on the path it is skipped. Exit status: 0 if every target
was met, 3 if one was missed or it did not finish.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import psutil

from bench.chaos.guard import Child
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.figures import Figures
from bench.options import output_file, parser_for
from bench.talking import Talkers, Turned, failed, hit_rate
from laar_lab.live.processes import cpu_s

ENDPOINTS = 4
CLIENTS = 16
ROUNDS = 3
TARGET_CPU = 1.15


@asynccontextmanager
async def _stand(
    *, pickers: int, store: str | None = None, deadline_s: float = 900.0
) -> AsyncIterator[Stand]:
    plan = Plan(
        endpoints=(Endpoint(model="m", names=("m",), known=("m",)),) * ENDPOINTS,
        pickers=pickers,
        store=Path(store) if store else None,
        engines="bench.instant",
        settings={"shutdown": {"drain_s": 0.5, "grace_s": 2.0}},
    )
    async with standing(plan, deadline_s=deadline_s) as stand:
        if store:
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


async def _answered(talkers: Talkers, seconds: float) -> list[Turned]:
    """Run clients for a while; return their requests, and raise if one failed."""
    ended = await talkers.during(seconds)
    if failed(ended):
        raise RuntimeError(f"{failed(ended)} of {len(ended)} requests failed")
    return ended


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


DEADLINE_S = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 3 if a target was missed."""
    options = _parser().parse_args(argv)
    figures = Figures()
    store = shutil.which("redis-server") or shutil.which("valkey-server")
    if store is None:
        print("SKIPPED, no redis-server and no valkey-server is installed")
        figures.unfinished["cost"] = "no store is installed"
    else:
        part = partial(cost, figures, store=store, rate=options.requests, seconds=options.seconds)
        asyncio.run(figures.run("cost", DEADLINE_S, part))
    return figures.conclude(options.json)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("sharing", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--requests", type=float, default=200.0, help="per second through Envoy")
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
