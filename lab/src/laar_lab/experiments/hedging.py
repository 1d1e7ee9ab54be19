"""Two models at once: time that hedging saves users, and engine time that it costs.

Users of the lab's fleet put questions of all cells, shuffled, until the answer is right. With a
hedge the second-best model is asked beside the first where that pays (`laar.client.hedging`), the
first right answer is taken and the other request is cancelled, which frees its engine.

Times are shares of T, twice the time an idle fleet needs to put the question to every model once; a
question without a right answer counts T. Engine seconds are those from sending to the answer, or to
the cancellation. The picker's estimates are taken for known when a request is sent; on a network
they come with the head of its answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.client.hedging import Advice, Hedge
from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import World, sites_of, uncached, world_of
from laar_lab.kv_lookup import queries
from laar_lab.report import Report, Table
from laar_lab.sim.fleet import FleetSettings, Question, VirtualFleet
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.sim.fleet.exchange import Exchange
from laar_lab.statistics import Estimate, means
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

USERS = (1, 2, 4, 8)
FEW = 2
PER_CELL = 10
HEDGES: dict[str, Hedge | None] = {
    "one at a time": None,
    "price 1": Hedge(budget_s=1e6, price=1.0),
    "price 1/4": Hedge(budget_s=1e6, price=0.25),
    "always": Hedge(budget_s=1e6, price=0.0, min_next_p=0.0),
}
_EARLY = 0.1  # of T

_Key = tuple[str, int]


@dataclass(slots=True)
class _Asked:
    """A question on its way."""

    question: Question
    begun_s: float
    tried: str = ""
    sent: int = 0
    spent_s: float = 0.0
    under_way: int = 0
    exhausted: bool = False


def run(scope: Scope) -> Report:
    """Every hedge with every number of users."""
    world, users = world_of(scope), (2, 8) if scope.quick else USERS
    cases = {(name, n): (world, name, n, scope.quick) for n, name in product(users, HEDGES)}
    results = grid(run_one, cases, scope.seeds, label="hedging")
    rows: list[tuple[str | Estimate, ...]] = [
        (f"{name}, {n} users", *means(results[name, n], _COLUMNS)) for name, n in cases
    ]
    table = Table(
        title="Shares of T, and engine seconds for each question",
        columns=("hedge", *_COLUMNS),
        rows=rows,
        digits=3,
    )
    return Report(tables=[table], evidence=_evidence(results, users))


_COLUMNS = ("restricted mean time", "right within T/10", "right within T", "engine s")


def run_one(world: World, name: str, users: int, quick: bool, seed: int) -> dict[str, float]:
    """One hedge, one number of users, one seed."""
    drawn = queries(per_cell=3 if quick else PER_CELL, seed=seed)
    random.Random(f"{seed}/order").shuffle(drawn)
    asked = [uncached(question) for question in as_questions(drawn, world.surface, seed=seed)]
    assessor = CapabilityAssessor(CapabilityModel(world.capability))
    fleet = VirtualFleet(sites_of(world.surface), FleetSettings(), seed=seed, assessor=assessor)
    limits = [_limit_s(world, question) for question in asked]
    times, engine_s = _ask_all(fleet, asked, HEDGES[name], users)
    shares = np.array(times) / np.array(limits)
    numbers = (
        np.minimum(shares, 1.0).mean(),
        (shares <= _EARLY).mean(),
        (shares <= 1.0).mean(),
        engine_s / len(asked),
    )
    return dict(zip(_COLUMNS, map(float, numbers), strict=True))


def _limit_s(world: World, question: Question) -> float:
    """T of a question: twice the seconds of every model, one after the other."""
    surface, tokens = world.surface, question.prompt.prompt_tokens
    return 2.0 * sum(
        m.seconds_per_token * tokens + m.decode_s_per_token * question.prompt.output_tokens
        for m in surface.models.values()
    )


def _ask_all(
    fleet: VirtualFleet, questions: Sequence[Question], hedge: Hedge | None, users: int
) -> tuple[list[float], float]:
    """Seconds to each question's right answer, infinite where there was none; engine seconds."""
    waiting = iter(questions)
    times: list[float] = []
    engine_s = 0.0

    def begin() -> None:
        question = next(waiting, None)
        if question is not None:
            attempt(_Asked(question, fleet.clock.now), len(times))
            times.append(np.inf)

    def attempt(record: _Asked, at: int) -> None:
        sent: list[Exchange] = []

        def ended(exchange: Exchange) -> None:
            nonlocal engine_s
            engine_s += exchange.latency_s
            record.under_way -= 1
            if record.question.is_correct(exchange.decision.model):
                times[at] = fleet.clock.now - record.begun_s
                for other in sent:
                    if other is not exchange and not other.end_s:
                        fleet.cancel(other)
                        engine_s += other.latency_s
                begin()
            elif not record.under_way:
                if record.exhausted or record.sent >= MAX_ATTEMPTS:
                    begin()
                else:
                    attempt(record, at)

        first = _send(fleet, record, sent, ended)
        advice = first.decision.hedge
        if hedge is None or advice is None or record.sent >= MAX_ATTEMPTS:
            return
        elapsed_s = fleet.clock.now - record.begun_s
        if hedge.pays(Advice(*advice), spent_s=record.spent_s, elapsed_s=elapsed_s):
            _send(fleet, record, sent, ended, beside=first.decision.id)

    for _ in range(users):
        begin()
    fleet.clock.run()
    return times, engine_s


def _send(
    fleet: VirtualFleet,
    record: _Asked,
    sent: list[Exchange],
    ended: Callable[[Exchange], None],
    beside: str = "",
) -> Exchange:
    question, number = record.question, record.sent
    request = replace(
        question.request,
        id=f"{question.request.id}/{number}",
        tried=record.tried,
        wants_hedge=not beside,
        hedge_of=beside,
    )
    draw = question.normals[number % len(question.normals)]
    record.sent += 1
    record.under_way += 1
    exchange = fleet.send(request, question.prompt, ended, normal=draw)
    sent.append(exchange)
    record.tried = ",".join(exchange.decision.tried)
    record.exhausted = exchange.decision.exhausted
    return exchange


def _evidence(results: dict[_Key, list[dict[str, float]]], users: Sequence[int]) -> Evidence:
    def parts(column: str, name: str, counts: Sequence[int]) -> dict[str, Seen]:
        return {
            f"{n} users": paired(results[name, n], results["one at a time", n], column)
            for n in counts
        }

    few = [n for n in users if n <= FEW]
    mean, early, _, engine = _COLUMNS
    return {
        "early": parts(early, "price 1/4", few),
        "faster": parts(mean, "price 1/4", few),
        "engines": parts(engine, "price 1/4", few),
        "no-harm": parts(mean, "price 1", users),
    }


EXPERIMENTS = declared(__name__, {"hedging": run})
