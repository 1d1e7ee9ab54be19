"""Send a million requests with churn; check for memory growth, leaked counters and rising p99.

One picker and one Envoy run with simulated endpoints a thousand times as fast as real ones, so
that picker and Envoy carry the load. Endpoints come and go, settings are reloaded, clients hang
up; every answer is checked. Prints the slope of memory over requests after the warm-up with its 95
% interval, the counters at the end, p99 of the last tenth compared with the first tenth after the
warm-up, and requests a second.

    python -m bench soak
    python -m bench soak --requests 50000 --minutes 5 --shape gateway --json soak.json

Exit status: 0 if nothing grew and nothing was lost, 3 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
from rich.console import Console
from rich.table import Table

from bench.bench_chaos import leftovers
from bench.chaos.asking import End, Ended, Question, draw
from bench.chaos.load import Load, percentile
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.options import count, output_file, parser_for, positive
from laar.envoy.options import Shape

GREW = 3
MODEL = "m"
ENDPOINTS = 8
AT_ONCE = 32
PATIENCE_S = 30.0
TEXTS = 2000
CHURN_S = 5.0
RELOAD_S = 7.0
SAMPLE_S = 1.0
REPORT_EVERY_S = 60.0
WARM_UP_SHARE = 0.3
BLOCKS = 10
T_95 = 2.306
"""Student's t for 8 degrees of freedom: ten blocks, two parameters of a line."""
MAX_P99_RATIO = 1.2
KEPT_EXAMPLES = 20
GOOD = (End.RIGHT, End.LEFT)


@dataclass(slots=True)
class Soak:
    """The record of a run; a few bytes per request."""

    took_s: array[float] = field(default_factory=lambda: array("f"))
    ends: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    seconds: float = 0.0

    def keep(self, ended: Ended) -> None:
        """Record a completed request."""
        self.ends[str(ended.end)] += 1
        if ended.end is End.RIGHT:
            self.took_s.append(ended.took_s)
        elif ended.end not in GOOD and len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(f"{ended.end}: {ended.detail}")

    @property
    def requests(self) -> int:
        """Return the number of completed requests."""
        return self.ends.total()

    @property
    def lost(self) -> int:
        """Return the number of requests without a correct answer."""
        return self.requests - sum(self.ends[str(end)] for end in GOOD)

    def p99_s(self) -> tuple[float, float]:
        """Return p99 of the first tenth after the warm-up, and of the last tenth."""
        after = self.took_s[int(len(self.took_s) * WARM_UP_SHARE) :]
        tenth = max(1, len(after) // 10)
        return percentile(list(after[:tenth]), 0.99), percentile(list(after[-tenth:]), 0.99)


@dataclass(frozen=True, slots=True)
class Slope:
    """Bytes per 100,000 requests, with the half-width of the 95 % interval."""

    value: float
    half_width: float

    @property
    def is_flat(self) -> bool:
        """Return whether no growth is detectable."""
        return not self.value > self.half_width


def slope_of(samples: Sequence[tuple[int, int]]) -> Slope:
    """Fit a line through block means of (requests, bytes), without the warm-up.

    Block means are used since adjacent samples of a process's memory are not independent.
    """
    after = samples[int(len(samples) * WARM_UP_SHARE) :]
    size = len(after) // BLOCKS
    if size == 0:
        return Slope(math.nan, math.nan)
    blocks = [after[i * size : (i + 1) * size] for i in range(BLOCKS)]
    x = [statistics.fmean(n for n, _ in block) / 1e5 for block in blocks]
    y = [statistics.fmean(size_bytes for _, size_bytes in block) for block in blocks]
    line = statistics.linear_regression(x, y)
    rest = [b - line.intercept - line.slope * a for a, b in zip(x, y, strict=True)]
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    error = math.sqrt(sum(r * r for r in rest) / (BLOCKS - 2) / spread)
    return Slope(line.slope, T_95 * error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and return 3 if something grew or was lost."""
    options = _parser().parse_args(argv)
    soak = Soak()
    left = asyncio.run(_run(soak, options))
    slopes = {name: slope_of(samples) for name, samples in soak.memory.items()}
    first_s, last_s = soak.p99_s()
    faults = []
    if soak.lost:
        faults.append(f"{soak.lost} requests lost: {soak.examples[:3]}")
    if left:
        faults.append(f"counters did not return to zero: {left}")
    if last_s > MAX_P99_RATIO * first_s:
        faults.append(f"p99 went from {first_s * 1000:.1f} to {last_s * 1000:.1f} ms")
    faults += [f"memory of {name} grows" for name, slope in slopes.items() if not slope.is_flat]
    _show(soak, slopes, first_s, last_s)
    for fault in faults:
        print(f"FAILED: {fault}")
    if options.json:
        document = {
            "seed": options.seed,
            "shape": options.shape,
            "requests": soak.requests,
            "seconds": soak.seconds,
            "ends": soak.ends,
            "p99_first_s": first_s,
            "p99_last_s": last_s,
            "bytes_per_100k_requests": {n: [s.value, s.half_width] for n, s in slopes.items()},
            "memory": soak.memory,
            "faults": faults,
        }
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return GREW if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("soak", __doc__)
    parser.add_argument("--requests", type=count, default=1_000_000)
    parser.add_argument("--minutes", type=positive, default=90.0, help="maximum duration")
    parser.add_argument("--shape", choices=("standalone", "gateway"), default="standalone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


async def _run(soak: Soak, options: argparse.Namespace) -> dict[str, float]:
    """Load the stand until the count or time is reached; return the counters not at zero."""
    shape: Shape = options.shape
    one = Endpoint(model=MODEL, names=(MODEL,), known=(MODEL,))
    plan = Plan(endpoints=(one,) * ENDPOINTS, shape=shape, time_scale=0.001)
    limit_s = options.minutes * 60
    async with standing(plan, deadline_s=limit_s + 300) as stand:
        questions = _questions(options.seed)
        until_s = time.monotonic() + limit_s

        def next_question(number: int) -> Question | None:
            if number >= options.requests or time.monotonic() > until_s:
                return None
            return questions[number * 7919 % len(questions)]

        load = Load(
            url=lambda: stand.url,
            next_question=next_question,
            names=stand.names_of_one(MODEL),
            at_once=AT_ONCE,
            limit_s=PATIENCE_S,
            keep=soak.keep,
        )
        began_s = time.monotonic()
        disturbing = [
            asyncio.create_task(_churn(stand, random.Random(options.seed))),
            asyncio.create_task(_reload(stand)),
            asyncio.create_task(_sample(stand, soak, began_s)),
        ]
        try:
            await load.run()
        finally:
            for task in disturbing:
                task.cancel()
            await asyncio.gather(*disturbing, return_exceptions=True)
        soak.seconds = time.monotonic() - began_s
        return await leftovers(stand)


def _questions(seed: int) -> list[Question]:
    """Return questions to reuse: making one per request would load the clients instead."""
    rng = random.Random(seed)
    return [
        draw(rng, number, names=(MODEL,), tokens=(4, 16), long_share=0.05, leave_share=0.03)
        for number in range(TEXTS)
    ]


async def _churn(stand: Stand, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(CHURN_S)
        gone = rng.sample(range(ENDPOINTS), rng.randint(0, ENDPOINTS // 2))
        stand.write(stand.endpoints_file, stand.members(without=gone))


async def _reload(stand: Stand) -> None:
    while True:
        for fallbacks in (1, 2, 3):
            await asyncio.sleep(RELOAD_S)
            stand.write_settings(routing={"fallbacks": fallbacks})


async def _sample(stand: Stand, soak: Soak, began_s: float) -> None:
    reported_s = time.monotonic()
    while True:
        await asyncio.sleep(SAMPLE_S)
        for child in (stand.pickers[0], stand.envoy):
            assert child is not None
            name = child.name.partition("-")[0]
            soak.memory.setdefault(name, []).append((soak.requests, child.memory_bytes()))
        if time.monotonic() - reported_s > REPORT_EVERY_S:
            reported_s = time.monotonic()
            sizes = ", ".join(f"{n} {s[-1][1] >> 20} MiB" for n, s in soak.memory.items())
            rate = soak.requests / (reported_s - began_s)
            print(f"{soak.requests} requests, {rate:.0f}/s, {sizes}, {soak.lost} lost", flush=True)


def _show(soak: Soak, slopes: dict[str, Slope], first_s: float, last_s: float) -> None:
    table = Table("what", "figure", title="Soak")
    ends = ", ".join(f"{end}: {count}" for end, count in soak.ends.most_common())
    table.add_row("requests", f"{soak.requests} in {soak.seconds:.0f} s")
    table.add_row("requests a second", f"{soak.requests / max(soak.seconds, 1e-9):.0f}")
    table.add_row("by end", ends)
    table.add_row("p99, first and last tenth", f"{first_s * 1000:.1f}, {last_s * 1000:.1f} ms")
    for name, slope in slopes.items():
        samples = soak.memory[name]
        verdict = "indistinguishable from 0" if slope.is_flat else "GROWS"
        table.add_row(
            f"memory of {name}",
            f"{samples[0][1] >> 20} to {samples[-1][1] >> 20} MiB; after the warm-up "
            f"{slope.value / 1024:+.0f} KiB ± {slope.half_width / 1024:.0f} for 100,000 requests: "
            f"{verdict}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    sys.exit(main())
