"""The demo of `laar up`: a fleet, and questions with checked answers under laar and its rivals.

Times are in the fleet's seconds: real time divided by the time scale.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from laar_lab.figure import draw
from laar_lab.kv_lookup import LANGUAGES, LENGTHS_TOKENS, Query, queries
from laar_lab.live.answered import LIMIT_S, MARKS_S, Contestant, chart, sentence, soon
from laar_lab.live.comparison import Tally, compare
from laar_lab.live.fleet import Fleet, running_fleet
from laar_lab.report import Report

OURS = "laar"
AS_RUN = ("least-loaded", "llm-d", "sglang-cache-aware", "session-affinity")
"""Policies that run with their usual retries, which may go to a model that has failed."""
_BAR_WIDTH = 6
_MOST_MACHINE_S = MARKS_S[0] / 5
"""Mean time of an attempt outside its engine, in the fleet's seconds, above which to warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A finished comparison.

    Args:
        tallies: tallies of laar, of each policy with its usual retries, and of the best of these
            policies with laar's rule for retries and stopping.
        contestants: times to a correct answer, one contestant per tally.
        keep_prompts: whether the engines cached the prompts of earlier requests.
        time_scale: real seconds per simulated second.
    """

    tallies: Sequence[Tally]
    contestants: Sequence[Contestant]
    keep_prompts: bool
    time_scale: float

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each contestant, in the fleet's seconds."""
        return [_row(*pair) for pair in zip(self.tallies, self.contestants, strict=True)]

    @property
    def sentences(self) -> list[str]:
        """Comparisons with the best rival under either retry rule, and by the first mark."""
        ours, *others, fair = self.contestants
        best = min(others, key=lambda one: one.par2_s)
        said = [sentence(ours, best), sentence(ours, fair), soon(ours, [*others, fair])]
        slow = max(one.machine_s or 0.0 for one in self.contestants)
        if slow > _MOST_MACHINE_S:
            scale = self.time_scale * math.ceil(slow / _MOST_MACHINE_S)
            said.append(
                f"This machine was busy or slow: it added up to {slow:.1f} s per attempt "
                f"(machine s), which all times above include. --time-scale {scale:g} reduces it."
            )
        return said


async def run_fleet(
    console: Console,
    directory: Path,
    *,
    requests: int | None,
    concurrency: int,
    time_scale: float,
    port: int,
    keep_prompts: bool = True,
) -> Demo | None:
    """Run the fleet until the comparison is done and return it, or run until a signal.

    Args:
        console: console for progress and hints.
        directory: directory for settings and logs.
        requests: questions per policy; None for no comparison.
        concurrency: number of questions in flight.
        time_scale: real seconds per simulated second.
        port: Envoy's port if nothing is compared; 0 for a free port.
        keep_prompts: whether endpoints cache the prompts of earlier requests.
    """
    async with AsyncExitStack() as stack:
        doing = "starting five simulated endpoints, the picker and Envoy"
        if not console.is_terminal:  # a status line shows only on a terminal
            console.print(doing)
        with console.status(doing):
            fleet = await stack.enter_async_context(
                running_fleet(
                    directory,
                    time_scale=time_scale,
                    policies=AS_RUN,
                    port=0 if requests else port,
                    keep_prompts=keep_prompts,
                )
            )
        if not requests:
            await _stay(console, fleet)
            return None
        asked = _questions(requests)

        async def run(policies: Sequence[str]) -> list[Tally]:
            return await compare(
                console,
                fleet.url,
                asked,
                policies=policies,
                concurrency=concurrency,
                models=fleet.models,
            )

        tallies = await run((OURS, *AS_RUN))
        contestants = [Contestant.of(tally, time_scale=time_scale) for tally in tallies]
        best = min(contestants[1:], key=lambda one: one.par2_s).name
        await fleet.leave_tried_models()
        [fair] = await run([best])
        contestants.append(Contestant.of(fair, time_scale=time_scale, name=f"{best}, new model"))
    return Demo(
        tallies=[*tallies, fair],
        contestants=contestants,
        keep_prompts=keep_prompts,
        time_scale=time_scale,
    )


async def _stay(console: Console, fleet: Fleet) -> None:
    """Print commands to try, and wait for a signal."""
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
    """Return `requests` queries, spread evenly over languages and lengths."""
    cells = len(LANGUAGES) * len(LENGTHS_TOKENS)
    per_cell = math.ceil(requests / cells)
    drawn = queries(per_cell=per_cell, split="evaluate")
    # Take from the cells in turn, so that the questions are spread evenly if not all are needed.
    order = sorted(range(len(drawn)), key=lambda i: (i % per_cell, i))
    return [drawn[i] for i in order[:requests]]


def _row(tally: Tally, contestant: Contestant) -> dict[str, object]:
    outcomes = [outcome for _, outcome in tally.results]
    attempts = [len(outcome.attempts) for outcome in outcomes]
    mix = Counter(a.model for outcome in outcomes for a in outcome.attempts)
    return {
        "policy": contestant.name,
        "questions": len(outcomes),
        "success_rate": sum(outcome.correct for outcome in outcomes) / len(outcomes),
        "attempts_mean": sum(attempts) / len(attempts),
        "attempts_max": max(attempts),
        "within": {f"{mark:g} s": contestant.within(mark) for mark in MARKS_S},
        "par2_s": contestant.par2_s,
        "engine_s_per_correct": contestant.engine_s_per_correct,
        "machine_s_per_attempt": contestant.machine_s,
        "model_mix": dict(mix.most_common()),
        "faults": len(tally.faults),
    }


def show(console: Console, demo: Demo) -> None:
    """Print the shares by time, the costs, and the sentences, without cutting names."""
    shares = Table(title="Questions answered correctly, by seconds of the fleet's time")
    shares.add_column("policy", no_wrap=True)
    for mark in MARKS_S:
        shares.add_column(f"{mark:g} s", no_wrap=True)
    costs = Table(title="Retries and costs")
    costs.add_column("policy", no_wrap=True)
    for name in ("success", "attempts", "PAR-2", "engine s", "machine s"):
        costs.add_column(name, justify="right")
    for row, one in zip(demo.rows, demo.contestants, strict=True):
        shares.add_row(one.name, *(_bar(one.within(mark)) for mark in MARKS_S))
        spent = one.engine_s_per_correct
        costs.add_row(
            one.name,
            f"{row['success_rate']:.0%}",
            f"{row['attempts_mean']:.2f}",
            f"{one.par2_s:.1f} s",
            "-" if spent is None else f"{spent:.1f}",
            "-" if one.machine_s is None else f"{one.machine_s:.1f}",
        )
    console.print(shares)
    console.print(costs)
    for each in demo.sentences:
        console.print(each, highlight=False, soft_wrap=True)
    kept = "keep prompts (a retry on the same engine is cheap)"
    dropped = "keep no prompts (each retry pays for its prefill)"
    for line in (
        "The last row retries as laar does: never the same model twice, then stop.",
        "PAR-2: mean seconds to the correct answer; a question with no correct answer within "
        f"{LIMIT_S:g} s counts as {2 * LIMIT_S:g} s.",
        "Engine s: time in engines for each correct answer. Machine s: time of an attempt outside "
        f"its engine (clients, Envoy, picker), times {1 / demo.time_scale:g} because the fleet "
        "runs that much faster than real time.",
        f"The engines here {kept if demo.keep_prompts else dropped}; "
        f"--{'drop' if demo.keep_prompts else 'keep'}-prompts shows the other case.",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _bar(share: float) -> str:
    return f"{share:4.0%} {'█' * round(share * _BAR_WIDTH)}"


def plot(path: Path, demo: Demo) -> None:
    """Draw the shares by time to a file; the suffix sets the format.

    Raises:
        SettingError: the format is unknown or the file can't be written.
    """
    marks_s = [LIMIT_S * step / 30 for step in range(31)]
    draw(
        Report(tables=[], checks=[], charts=[chart(demo.contestants, marks_s)]),
        path,
        demo.sentences[0],
    )
