"""Every experiment returns the evidence for its claims at full size.

Otherwise a claim without evidence, or evidence without a claim, would show up hours later. Here
`sweep` invents the results of simulations by their type; the rest is the experiment's own code.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from types import GenericAlias
from typing import Any, get_args, get_origin, get_type_hints

import joblib
import numpy as np
import pytest
from rich.console import Console

from laar_lab.experiments import all_experiments, right_soonest, wrong_price
from laar_lab.experiments.lookups import CellResult
from laar_lab.experiments.medha_runs import Latencies
from laar_lab.report import as_records, dump, show
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS

KNOWN = {name: each for name, each in all_experiments().items() if not each.needs_data}
RNG = random.Random(5)


class Numbers(dict[str, float]):
    """A dictionary with a number for every key."""

    def __missing__(self, name: str) -> float:
        self[name] = 0.5 + RNG.random()
        return self[name]

    def __or__(self, other: Any) -> Any:
        return Numbers({**self, **other})


def invented(kind: Any) -> Any:
    """Return a random value of a type."""
    if get_origin(kind) is tuple:
        return tuple(invented(each) for each in get_args(kind))
    if kind in (float, int):
        return kind(1.0 + 9.0 * RNG.random())
    if get_origin(kind) is dict or kind is dict or isinstance(kind, GenericAlias):
        return Numbers()
    made: dict[Any, Callable[[], Any]] = {
        CellResult: lambda: CellResult(
            latencies_s=np.random.default_rng(1).random((50, MAX_ATTEMPTS)) + RNG.random(),
            attempts=np.full(50, RNG.randint(1, 5)),
            correct=np.arange(50) % 3 > 0,
        ),
        Latencies: lambda: Latencies(
            **{n: np.array([RNG.random() + 0.1] * 9) for n in ("ttft_s", "first_s", "tpot_s")},
            is_long=np.arange(9) % 3 == 0,
        ),
        wrong_price._Run: lambda: wrong_price._Run(right=RNG.random(), mean_s=1.0 + RNG.random()),
        right_soonest._Run: lambda: right_soonest._Run(
            solved_s=1.0 + RNG.random(), restricted_s=1.0, solved=1.0
        ),
    }
    return made[kind]()


def sweep(run: Callable[..., Any], cases: Sequence[tuple[Any, ...]], *, label: str) -> list[Any]:
    """Return made-up results, in place of `laar_lab.sweep`."""
    for case in cases:
        inspect.signature(run).bind(*case)
        joblib.hash(case)  # the real sweep stores runs under this hash
    kind = get_type_hints(run)["return"]
    if run.__name__ == "tuned":
        return [{"rtt_weight": 0.3, "queue_weight": 0.2} for _ in cases]
    return [invented(kind) for _ in cases]


SLOW = {"no-regret"}
"""Experiments that are slow even with made-up results."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(KNOWN)],
)
def test_an_experiment_returns_the_evidence_for_its_claims(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules.values()):
        if module.__name__.startswith("laar_lab."):
            monkeypatch.setattr(module, "sweep", sweep, raising=False)
    experiment = KNOWN[name]
    scope = experiment.scope(3, quick=False)
    report = experiment.run(scope)
    judged = experiment.judged(report, scope)
    assert [one.claim for one in judged] == list(experiment.claims)
    shown = Console(file=StringIO(), width=300)
    show(report, shown, judged)
    assert dump(report, claims=as_records(judged))
