"""The demo of `laar up`: a fleet, and verified questions under every policy.

Times are the fleet's own seconds: the clock's, divided by the time scale.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from laar.lab.live.comparison import Tally, compare
from laar.lab.live.fleet import Fleet, running_fleet
from laar.measuring.kv_lookup import LANGUAGES, LENGTHS_TOKENS, Query, queries

__all__ = ["run_fleet", "show", "table"]

POLICIES = ("laar", "load-aware", "session-affinity", "random", "round-robin", "least-loaded")


async def run_fleet(
    console: Console,
    directory: Path,
    *,
    requests: int | None,
    concurrency: int,
    time_scale: float,
    port: int,
) -> list[Tally]:
    """Runs the fleet until the comparison is done, or until a signal when there is none.

    Args:
        console: for progress and hints.
        directory: for settings and logs.
        requests: questions per policy; None compares nothing.
        concurrency: questions in flight at once.
        time_scale: real seconds for a simulated second.
        port: of Envoy while nothing is compared; 0 for a free one.
    """
    async with AsyncExitStack() as stack:
        with console.status("starting five simulated endpoints, the picker and Envoy"):
            fleet = await stack.enter_async_context(
                running_fleet(directory, time_scale=time_scale, port=0 if requests else port)
            )
        if requests:
            return await compare(
                console,
                fleet.url,
                _questions(requests),
                policies=POLICIES,
                concurrency=concurrency,
                models=fleet.models,
            )
        await _stay(console, fleet)
    return []


async def _stay(console: Console, fleet: Fleet) -> None:
    """Says what to try, and waits to be stopped."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    body = '{"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}'
    console.print(
        f"\nEnvoy listens on {fleet.url}. Try:\n\n"
        f"  curl -i {fleet.url}/v1/chat/completions -H 'content-type: application/json' "
        f"-d '{body}'\n"
        f"  curl -i {fleet.url}/v1/chat/completions -H 'content-type: application/json' "
        f"-H 'x-laar-policy: random' -d '{body}'\n"
        f"  curl {fleet.admin_url}/metrics\n\n"
        f"The live page is {fleet.admin_url}/\n"
        "Ctrl-C stops everything.",
        soft_wrap=True,
        highlight=False,
    )
    await stopped.wait()


def _questions(requests: int) -> list[Query]:
    """About so many queries, spread evenly over languages and lengths."""
    cells = len(LANGUAGES) * len(LENGTHS_TOKENS)
    per_cell = math.ceil(requests / cells)
    drawn = queries(per_cell=per_cell, split="evaluate")
    # Taking every n-th of the list by cell keeps the spread when fewer were asked for.
    order = sorted(range(len(drawn)), key=lambda i: (i % per_cell, i))
    return [drawn[i] for i in order[:requests]]


def table(tallies: Sequence[Tally], time_scale: float) -> list[dict[str, object]]:
    """One row for each policy; seconds are the fleet's."""
    return [_row(tally, time_scale) for tally in tallies]


def _row(tally: Tally, time_scale: float) -> dict[str, object]:
    """A policy's row of the table; seconds are the fleet's."""
    outcomes = [outcome for _, outcome in tally.results]
    times = sorted(outcome.ttca_s / time_scale for outcome in outcomes)
    attempts = [len(outcome.attempts) for outcome in outcomes]
    mix = Counter(a.model for outcome in outcomes for a in outcome.attempts)
    n = len(outcomes)
    correct = sum(outcome.correct for outcome in outcomes)
    return {
        "policy": tally.policy,
        "questions": n,
        "success_rate": correct / n,
        "attempts_mean": sum(attempts) / n,
        "attempts_max": max(attempts),
        "ttca_mean_s": sum(times) / n,
        "ttca_p95_s": times[min(n - 1, math.ceil(0.95 * n) - 1)],
        "spent_per_correct_s": sum(times) / correct if correct else None,
        "model_mix": dict(mix.most_common()),
        "faults": len(tally.faults),
    }


def show(console: Console, rows: Sequence[Mapping[str, object]]) -> None:
    """Prints the rows and the model mix."""
    shown = Table(title="Time to correct answer by policy, in the fleet's own seconds")
    names = ("policy", "success", "attempts", "most", "mean TTCA", "p95 TTCA", "per correct")
    for name in names:
        shown.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        shown.add_row(
            str(row["policy"]),
            f"{row['success_rate']:.1%}",
            f"{row['attempts_mean']:.2f}",
            str(row["attempts_max"]),
            f"{row['ttca_mean_s']:.1f} s",
            f"{row['ttca_p95_s']:.1f} s",
            "-" if row["spent_per_correct_s"] is None else f"{row['spent_per_correct_s']:.1f} s",
        )
    console.print(shown)
    console.print("A question given up on counts with the time spent on it; `per correct` shares")
    console.print("all time spent among the correct answers.\n")
    mixes = {str(row["policy"]): row["model_mix"] for row in rows}
    shares = Table(title="Model mix: share of the attempts")
    shares.add_column("policy")
    models = sorted({model for mix in mixes.values() for model in cast(dict[str, int], mix)})
    for model in models:
        shares.add_column(model, justify="right")
    for policy, mix in mixes.items():
        counts = cast(dict[str, int], mix)
        total = sum(counts.values())
        shares.add_row(policy, *(f"{counts.get(model, 0) / total:.0%}" for model in models))
    console.print(shares)
