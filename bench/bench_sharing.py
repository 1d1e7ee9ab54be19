"""Measure what sharing state between pickers costs: CPU per request and hit rate.

Two pickers behind a real Envoy share through a store, and two others do not; they take turns. Run
it on an idle machine; it takes a minute and a half.

    python -m bench sharing

Without `redis-server` or `valkey-server` on the path it is skipped. Exit status: 0 if every target
was met, 3 if one was missed, 1 if it did not finish.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean

import orjson
import psutil

from bench.chaos.guard import Child
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.figures import Figures
from bench.options import output_file, parser_for
from bench.picking.load import Load
from laar_lab.live.processes import cpu_s

ENDPOINTS = 4
ROUNDS = 3
TARGET_CPU = 1.15
TALKS = 64
_FIRST_CHARS, _MORE_CHARS, _MOST_CHARS = 2000, 600, 12_000
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json"
_HIT = re.compile(rb"\r\nx-hit: *([01])", re.IGNORECASE)


class Talks(Load):
    """Load of conversations: each request is the next turn of a random one without a request.

    Args:
        url: URL of Envoy.
        seed: seed of the texts and the order.

    Attributes:
        hits: whether each later turn reached the endpoint with the previous turn.
    """

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(url, (), may_fail=True)
        self._rng = random.Random(seed)
        self._names = (f"{seed}-{number}" for number in count())
        self._idle = [self._turns() for _ in range(TALKS)]
        self.hits: list[bool] = []

    async def _ask(self, _number: int) -> None:
        idle = self._idle
        talk = idle.pop(self._rng.randrange(len(idle))) if idle else self._turns()
        if hit := _HIT.search(await self.exchange(next(talk))):
            self.hits.append(hit[1] == b"1")
        idle.append(talk)

    def _turns(self) -> Iterator[bytes]:
        """Yield the requests of one conversation after another."""
        for name in self._names:
            text = self._rng.randbytes(_FIRST_CHARS // 2).hex()
            for turn in count():
                message = {"role": "user", "content": text}
                body = orjson.dumps({"model": "m", "messages": [message]})
                yield b"%b\r\nx-talk: %b\r\nx-turn: %d\r\ncontent-length: %d\r\n\r\n%b" % (
                    _HEAD,
                    name.encode(),
                    turn,
                    len(body),
                    body,
                )
                if len(text) > _MOST_CHARS:
                    break
                text += self._rng.randbytes(_MORE_CHARS // 2).hex()


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
                load = Talks(stand.url, number)
                before = _cpu_s(processes)
                sent = len(await load.at_rate(rate, seconds, number))
                spent = _cpu_s(processes) - before
                load.close()
                if load.failed:
                    raise RuntimeError(f"{load.failed} of {sent} requests failed")
                if number:  # the first round warms up
                    sums[name].append(spent / sent)
                    hits[name].append(fmean(load.hits))
        for name in sums:
            figures.add("cost", f"two pickers, {name}", 1e6 * fmean(sums[name]), "us a request")
            figures.add("cost", f"two pickers, {name}: hit rate", fmean(hits[name]), "")
        ratio = fmean(sums["sharing"]) / fmean(sums["alone"])
        figures.add("cost", "CPU with sharing / without", ratio, "x", at_most=TARGET_CPU)


DEADLINE_S = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 3 if a target was missed, 1 if it did not finish."""
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
