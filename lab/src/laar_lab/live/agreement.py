"""Check that a comparison through Envoy agrees with the lab.

Even on the same questions results depend on chance: the order in which users send them, the
endpoints that sessions hash to, ties, and packet delays. A run through Envoy is one draw. The lab
draws the same questions many times, each time with a different order, different sessions and
different jitter, and an interval around its draws shows where one more draw should lie (Student's t
for a new observation). As there are several figures, each interval is widened so that all of them
hold together with a probability of 95 % (Bonferroni). So one comparison in twenty fails by chance.

Envoy, the picker and the endpoints take real time that the lab does not model. A time scale
magnifies it: at 0.1, ten milliseconds count as a tenth of a second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from laar.accuracy.assessor import CapabilityAssessor, read_capability
from laar.accuracy.capability import CapabilityModel
from laar_lab.experiments.lookups import artifact, sites_of, surface_of, uncached
from laar_lab.kv_lookup import Query
from laar_lab.live.comparison import Tally
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.statistics import CONFIDENCE, one_more
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

DISAGREES = 3
"""Exit status if a figure differs; the same as for an experiment with a claim that is not shown."""

_ROUNDING = 1e-9  # success rates are shares of the same questions, so they can be equal


class Figures(NamedTuple):
    """The results of one policy in one run.

    Args:
        success_rate: share of the questions with a correct answer.
        attempts: mean number of attempts per question.
        ttca_s: mean time to correct answer, in the fleet's seconds.
    """

    success_rate: float
    attempts: float
    ttca_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One figure of one policy, through Envoy and in the lab.

    Args:
        policy: name of the policy.
        figure: a field of `Figures`.
        envoy: the figure through Envoy.
        lab: mean of the lab's runs.
        half: half width of the interval in which one more run should lie.
    """

    policy: str
    figure: str
    envoy: float
    lab: float
    half: float

    @property
    def agrees(self) -> bool:
        """Whether the run through Envoy could be one of the lab's."""
        return abs(self.envoy - self.lab) <= self.half + _ROUNDING

    def as_dict(self) -> dict[str, object]:
        """Return the agreement as plain JSON types."""
        return {**asdict(self), "agrees": self.agrees}


def in_order(asked: Sequence[Query], seed: str) -> list[Query]:
    """Return the questions by cell, in random order within each cell."""
    cells: dict[tuple[str, int], list[Query]] = {}
    for query in asked:
        cells.setdefault((query.language, query.length_tokens), []).append(query)
    rng = random.Random(f"{seed}/order")
    return [query for cell in cells.values() for query in rng.sample(cell, len(cell))]


def in_lab(
    asked: Sequence[Query],
    policies: Sequence[str],
    *,
    runs: int,
    capability: Path | None,
    concurrency: int,
    keep_prompts: bool,
) -> dict[str, list[Figures]]:
    """Return the results of each policy on these questions in `runs` lab runs.

    Args:
        asked: the questions that go through Envoy.
        policies: names of the policies.
        runs: number of lab runs, each with different random draws.
        capability: the picker's artifact; None for the packaged one.
        concurrency: number of users.
        keep_prompts: whether engines cache the prompts of earlier requests.
    """
    known = read_capability(capability) if capability else CapabilityModel(artifact())
    cases = {policy: (policy, asked, known, concurrency, keep_prompts) for policy in policies}
    return grid(_run, cases, range(runs), label="the same questions in the lab")


def _run(
    policy: str,
    asked: Sequence[Query],
    known: CapabilityModel,
    concurrency: int,
    keep_prompts: bool,
    seed: int,
) -> Figures:
    surface = surface_of()
    questions = as_questions(in_order(asked, str(seed)), surface, seed=seed)
    if not keep_prompts:
        questions = [uncached(question) for question in questions]
    questions = [
        replace(q, request=replace(q.request, session=f"{q.request.session}/{seed}"))
        for q in questions
    ]
    fleet = VirtualFleet(
        sites_of(surface),
        FleetSettings(policy=policy),
        seed=seed,
        assessor=CapabilityAssessor(known),
    )
    answered = ask_until_correct(
        fleet, questions, concurrency=concurrency, max_attempts=MAX_ATTEMPTS
    )
    count = len(answered)
    return Figures(
        sum(record.correct for record in answered) / count,
        sum(len(record.models) for record in answered) / count,
        sum(record.ttca_s for record in answered) / count,
    )


def agreements(
    tallies: Sequence[Tally], lab: dict[str, list[Figures]], *, time_scale: float
) -> list[Agreement]:
    """Compare each policy's figures through Envoy with those from two or more lab runs."""
    compared = len(tallies) * len(Figures._fields)
    return [
        Agreement(
            policy=tally.policy,
            figure=figure,
            envoy=envoy,
            lab=sum(draws) / len(draws),
            half=one_more(draws, compared),
        )
        for tally in tallies
        for figure, envoy, draws in zip(
            Figures._fields,
            _in_envoy(tally, time_scale),
            zip(*lab[tally.policy], strict=True),
            strict=True,
        )
    ]


def _in_envoy(tally: Tally, time_scale: float) -> Figures:
    outcomes = [outcome for _, outcome in tally.results]
    count = len(outcomes)
    return Figures(
        sum(outcome.correct for outcome in outcomes) / count,
        sum(len(outcome.attempts) for outcome in outcomes) / count,
        sum(outcome.ttca_s for outcome in outcomes) / count / time_scale,
    )


_COLUMNS = {"success_rate": "success", "attempts": "attempts", "ttca_s": "mean TTCA, s"}


def show(console: Console, found: Sequence[Agreement], *, runs: int) -> None:
    """Print the table and a verdict."""
    table = Table(title="The same questions through Envoy and in the lab")
    table.add_column("policy", no_wrap=True)
    for column in _COLUMNS.values():
        table.add_column(column, justify="right")
        table.add_column("in the lab", justify="right")
    table.add_column("")
    for policy in dict.fromkeys(one.policy for one in found):
        row = [one for one in found if one.policy == policy]
        cells = [cell for one in row for cell in _cells(one)]
        outside = [_COLUMNS[one.figure] for one in row if not one.agrees]
        table.add_row(policy, *cells, f"outside: {', '.join(outside)}" if outside else "agrees")
    console.print(table)
    outside_count = sum(not one.agrees for one in found)
    console.print(
        f"In the lab: the mean of {runs} runs, and the interval for one more run. All intervals "
        f"hold at the same time with a probability of {CONFIDENCE:.0%}. "
        + (
            f"NOT in agreement: {outside_count} of {len(found)} figures are outside. A busy "
            "machine causes that too, mostly at short prompts: try a larger --time-scale."
            if outside_count
            else f"In agreement: all {len(found)} figures are inside."
        )
    )


def _cells(one: Agreement) -> tuple[str, str]:
    if one.figure == "success_rate":
        return f"{one.envoy:.1%}", f"{one.lab:.1%} ± {one.half:.1%}"
    return f"{one.envoy:.2f}", f"{one.lab:.2f} ± {one.half:.2f}"
