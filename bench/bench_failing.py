"""Measure lost requests and p95 latency while one of five equal endpoints fails.

Each row sends 1,500 requests through a real Envoy in both shapes, with default settings. The load
is an open loop, a Poisson process of 30 a second, so requests keep coming while the fleet hangs.
The fault begins after a short warm-up with a fresh picker. p95 is compared with the same fleet's
p95 without the fault, in the same run. laar is compared with two of its policies: least loaded and
random.

    python -m bench failing
    python -m bench failing --subjects laar --shapes standalone --rows 503,hang --json failing.json
    python -m bench failing --subjects laar --rate 100 --rows html,empty

Exit status: 0 if laar met all its targets, 3 if it missed one.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.chaos.asking import GOOD, Ended, Question, draw, outcome
from bench.chaos.load import OpenLoad
from bench.chaos.rows import POISON, ROWS, Healing, Row, Run
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.figures import VERDICTS, conclude, print_table, rank
from bench.options import count, names_of, output_file, parser_for, positive
from laar.envoy.options import Shape

MODEL = "m"
ENDPOINTS = 5
WARM_UP = 72
PATIENCE_S = 15.0
FAIR = 1 / ENDPOINTS
HEALED_WITHIN_S = 60.0
SUBJECTS = ("laar", "least-loaded", "random")
SHAPES: tuple[Shape, ...] = ("standalone", "gateway")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit with 3 if a target was missed."""
    options = _parser().parse_args(argv)
    rows = [row for row in ROWS if row.name in options.rows]
    results: list[dict[str, object]] = []
    for subject in options.subjects:
        # The others behave alike in both shapes.
        for shape in options.shapes if subject == "laar" else options.shapes[:1]:
            results += asyncio.run(_subject(options, subject, shape, rows))
    _show(results)
    return conclude(results, options.json, seed=options.seed, requests=options.requests)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("failing", __doc__)
    parser.add_argument("--requests", type=count, default=1500, help="for each row")
    parser.add_argument("--rate", type=positive, default=30.0, help="requests a second")
    parser.add_argument(
        "--without-health",
        action="store_true",
        help="disable laar's health tracking; it must then miss targets",
    )
    rows = [row.name for row in ROWS]
    parser.add_argument("--rows", type=names_of(rows), default=",".join(rows))
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES))
    parser.add_argument("--subjects", type=names_of(SUBJECTS), default=",".join(SUBJECTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


async def _subject(
    options: argparse.Namespace, subject: str, shape: Shape, rows: Sequence[Row]
) -> list[dict[str, object]]:
    """Run all rows of one subject in one shape."""
    one = Endpoint(model=MODEL, names=(MODEL,), known=(MODEL,))
    plan = Plan(
        endpoints=(one,) * ENDPOINTS,
        pickers=1,
        shape=shape,
        settings={
            "routing": {"allow_policy_header": True},
            "health": {"enabled": not options.without_health},
        },
    )
    deadline_s = 240.0 * (len(rows) + 2)
    async with standing(plan, deadline_s=deadline_s) as stand:
        bench = _Bench(stand, options, subject)
        results = []
        for row in rows:
            run = await bench.row(row)
            results.append(_result(row, subject, shape, run))
            result = results[-1]
            print(
                f"{subject} {shape} {row.name}: lost {result['lost']} of {result['requests']}, "
                f"{result['lost_after_2_s']} after 2 s, p95 x {result['p95_ratio']:.2f}, "
                f"{result['ends']}",
                flush=True,
            )
        return results


class _Bench:
    """Run rows against one subject."""

    def __init__(self, stand: Stand, options: argparse.Namespace, subject: str) -> None:
        self._stand = stand
        self._options = options
        self._policy = {} if subject == "laar" else {"x-laar-policy": subject}
        self._healthy_p95_s = math.nan
        self._names = stand.names_of_one(MODEL)

    async def _fresh(self) -> None:
        """Clear all faults, and start a new picker without history."""
        for index in range(ENDPOINTS):
            await self._stand.set_faults(index)
        await self._stand.restart_picker(0)
        await asyncio.sleep(1.5)  # Envoy's health check of the picker

    def _question(self, rng: random.Random, number: int) -> Question:
        question = draw(rng, number, names=(MODEL,), tokens=(12, 24))
        return replace(question, headers=self._policy)

    async def _load(
        self,
        next_question: Callable[[int], Question | None],
        keep: Callable[[Ended], None],
        *,
        seed: str,
    ) -> None:
        await OpenLoad(
            url=lambda: self._stand.url,
            next_question=next_question,
            names=self._names,
            rate_per_s=self._options.rate,
            seed=f"{self._options.seed} {seed}",
            limit_s=PATIENCE_S,
            keep=keep,
        ).run()

    async def row(self, row: Row) -> Run:
        """Run one row, and before all others the one without a fault."""
        if row is not ROWS[0] and math.isnan(self._healthy_p95_s):
            await self.row(ROWS[0])
        run, rng = Run(), random.Random(f"{self._options.seed} {row.name}")
        await self._fresh()
        await self._load(
            lambda number: self._question(rng, number) if number < WARM_UP else None,
            lambda _: None,
            seed="warm-up",
        )
        poison = (f"{row.poison}@with={POISON}",) if row.poison else ()
        for index in range(ENDPOINTS):
            own = row.faults if index == 0 or row.everywhere else ()
            await self._stand.set_faults(index, *own, *poison)
        run.fault_s = time.monotonic()
        over = False

        def next_question(number: int) -> Question | None:
            if over if row.heals else number >= self._options.requests:
                return None
            question = self._question(rng, number)
            if row.poison and number % 2:
                return replace(question, headers={**question.headers, POISON: "1"})
            return question

        def keep(ended: Ended) -> None:
            (run.poison if POISON in ended.question.headers else run.ended).append(ended)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._load(next_question, keep, seed=row.name))
            if row.heals is not None:
                await self._heal(row.heals, run)
            over = True
        if row.heals is not None:
            run.ended = [e for e in run.ended if e.began_s < run.fault_s + row.heals.after_s]
        if row is ROWS[0]:
            self._healthy_p95_s = rank([e.took_s for e in run.ended], 0.95)
        run.baseline_p95_s = self._healthy_p95_s
        counts = [await self._stand.faults_seen(index) for index in range(ENDPOINTS)]
        run.seen = [requests for requests, _ in counts]
        if row.poison:
            sound = counts if not row.faults else counts[1:]
            run.poison_attempts = sum(hit for _, hit in sound)
        return run

    async def _heal(self, heals: Healing, run: Run) -> None:
        """Heal the endpoint, and wait until it gets its share of the load within one window."""
        await asyncio.sleep(heals.after_s)
        run.failed_trials, _ = await self._stand.faults_seen(0)
        await self._stand.set_faults(0)
        healed_s = time.monotonic()
        address = self._stand.addresses[0]
        while time.monotonic() < healed_s + HEALED_WITHIN_S:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            since_s = max(healed_s, now - heals.window_s)
            window = [e for e in run.ended if e.began_s >= since_s and e.end in GOOD]
            own = sum(e.endpoint == address for e in window)
            if now - healed_s >= heals.window_s and own >= heals.share * FAIR * len(window):
                run.healed_after_s = now - healed_s
                return


def _result(row: Row, subject: str, shape: str, run: Run) -> dict[str, object]:
    words, holds = row.target
    return {
        "subject": subject,
        "shape": shape,
        "row": row.name,
        **outcome(run.ended),
        "lost_share": run.lost_share,
        "lost_after_2_s": len(run.lost_late),
        "lost_share_after_2_s": run.lost_late_share,
        "p95_ratio": run.p95_ratio,
        "sent_to_failing": run.seen[0],
        "seen": run.seen,
        "healed_after_s": run.healed_after_s,
        "failed_trials": run.failed_trials if row.heals else None,
        "attempts_per_poison": run.attempts_per_poison if row.poison else None,
        "target": words,
        "met": holds(run) if subject == "laar" else None,
    }


def _show(results: Sequence[dict[str, object]]) -> None:
    def cells(r: dict[str, Any]) -> tuple[str, ...]:
        healed, attempts = r["healed_after_s"], r["attempts_per_poison"]
        return (
            f"{r['subject']}, {r['shape']}, {r['row']}",
            f"{r['lost']} of {r['requests']}",
            str(r["lost_after_2_s"]),
            f"{r['lost_share_after_2_s']:.1%}",
            f"{r['p95_ratio']:.2f}",
            f"{healed:.0f} s" if healed else "never" if r["failed_trials"] is not None else "",
            f"{attempts:.2f}" if attempts is not None else "",
            r["target"],
            VERDICTS[r["met"]],
        )

    columns = ("subject, shape, fault", "lost", "after 2 s", "share", "p95 x", "healed", "attempts")
    rows = [cells(each) for each in results]
    print_table("One endpoint of five fails", (*columns, "target", "verdict"), rows)


if __name__ == "__main__":
    sys.exit(main())
