"""First answers under load: the price of a wrong answer, shared by those in flight.

The price is what one client would wait for a right answer. At a busy engine each second is waited
by all beside it, so the price is divided by the requests in flight at an endpoint, plus one. The
rival is a fixed price, the same at any load: each of several gives a point on a curve of right
answers against answers a second.

The fleet and its questions are those of `laar-ttca`, mixed, without caches, one attempt each. Users
ask one question after another; open loops send at a share of what 64 users get answered at a price
of 120 s. Answers a second are the users divided by the mean time, which leaves out a run's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.retry import WRONG_ANSWER_S
from laar.core.cost import CostWeights
from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats
from laar.policies import build_policies
from laar.policies.laar.outlook import Outlook
from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import asked_of, simulated, sites_of, uncached
from laar_lab.report import Report, Table, Value
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.statistics import estimate
from laar_lab.sweep import grid

PRICES_S = (60.0, 120.0, WRONG_ANSWER_S, 600.0)
USERS = (1, 8, 32)
SHARES = (0.5, 0.8, 1.1)
_MANY, _CAPACITY_AT_S = 64, 120.0

_Load = int | float
"""A number of users, or a share of the capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    right: float
    mean_s: float


class _Fixed(Outlook):
    """The default cost, with the same price at any load."""

    def __init__(self, price_s: float) -> None:
        super().__init__(CostWeights())
        self._price_s = price_s

    def score(self, view: View) -> Floats:
        view.wrong_s = self._price_s
        return super().score(view)


def run(scope: Scope) -> Report:
    """Ask at each load with the shared price, and with each fixed price."""
    loads: tuple[_Load, ...] = (8,) if scope.quick else (*USERS, *SHARES)
    cases = {(load, price): (load, price) for load in loads for price in (None, *PRICES_S)}
    found = grid(run_one, cases, scope.seeds, label="wrong-price")

    def seen(load: _Load, of: str) -> Seen:
        ours, full = (found[load, price] for price in (None, WRONG_ANSWER_S))
        if of == "right":
            return Seen([one.right for one in ours], [one.right for one in full])
        return Seen([1.0 / one.mean_s for one in ours], [1.0 / one.mean_s for one in full])

    evidence = {
        "on-the-curve": {
            f"{_name(load)}, {price:.0f} s": Seen(
                [_gain(a, b) for a, b in zip(found[load, price], found[load, None], strict=True)],
                [1.0] * len(scope.seeds),
            )
            for load in loads
            for price in PRICES_S
        },
    }
    for users in {8, 32}.intersection(loads):
        evidence |= {
            f"more-{users}": {"": seen(users, "rate")},
            f"right-{users}": {"": seen(users, "right")},
        }
    return Report(tables=[_table(found, loads)], evidence=evidence)


def run_one(load: _Load, price_s: float | None, seed: int) -> _Run:
    """Ask every question once; `price_s` is the fixed price, or None for the shared one."""
    if isinstance(load, int):
        return _ask(load, price_s, seed, None)
    return _ask(1, price_s, seed, _ask(_MANY, _CAPACITY_AT_S, seed, None).mean_s / _MANY / load)


def _ask(users: int, price_s: float | None, seed: int, every_s: float | None) -> _Run:
    world, policies = simulated(), build_policies(CostWeights())
    if price_s is not None:
        policies["laar"] = Policy(name="laar", scorers=[(_Fixed(price_s), 1.0)], knows_retries=True)
    fleet = VirtualFleet(
        sites_of(world.surface),
        FleetSettings(),
        seed=seed,
        assessor=CapabilityAssessor(CapabilityModel(world.capability)),
        policies=policies,
    )
    asked = [uncached(question) for question in asked_of(world, seed, False)]
    answered = ask_until_correct(fleet, asked, concurrency=users, max_attempts=1, every_s=every_s)
    return _Run(
        right=float(np.mean([one.correct for one in answered])),
        mean_s=float(np.mean([one.ttca_s for one in answered])),
    )


def _gain(fixed: _Run, ours: _Run) -> float:
    return min(fixed.right / ours.right, ours.mean_s / fixed.mean_s)


def _name(load: _Load) -> str:
    return f"{load} users" if isinstance(load, int) else f"{load:.0%} of capacity"


def _table(found: dict[tuple[_Load, float | None], list[_Run]], loads: Sequence[_Load]) -> Table:
    def row(load: _Load, price: float | None) -> tuple[Value, ...]:
        runs = found[load, price]
        return (
            _name(load),
            "shared" if price is None else f"{price:.0f} s",
            estimate([one.right for one in runs]),
            estimate([one.mean_s for one in runs]),
        )

    return Table(
        title="First answers: share right, and mean seconds",
        columns=("load", "price", "right", "s"),
        rows=[row(load, price) for load in loads for price in (None, *PRICES_S)],
        digits=3,
    )


EXPERIMENTS = declared(__name__, {"wrong-price": run})
