"""All of laar's policies, and all parts that settings can compose, keep the contract.

The checks are public (`laar.testing`). They must detect errors, so broken parts are tested as well.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import laar.policies
from laar.core.cost import CostWeights
from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.policies import POLICY_NAMES, build_policies
from laar.policies.own import OWN
from laar.policies.registry import PartKind
from support.conformance import check_all

BY_CHANCE_OR_IN_TURN = {
    "random",
    "round-robin",
    "weighted-random",
}
REQUIRED = {"label": {"label": "tier"}}


MAKERS: dict[str, Callable[[], Any]] = {
    **{f"policy {name}": lambda name=name: build_policies(CostWeights())[name]
       for name in POLICY_NAMES},
    **{f"{kind} {name}": partial(factory, **REQUIRED.get(name, {}))
       for kind in (PartKind.FILTER, PartKind.SCORER, PartKind.PICKER)
       for name, factory in OWN[kind].items()},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("title", MAKERS)
def test_each_part_of_a_policy_keeps_the_contract(title: str) -> None:
    symmetric = title.split()[1] not in BY_CHANCE_OR_IN_TURN
    check_all(MAKERS[title], symmetric=symmetric)


def test_every_part_in_the_package_has_a_name() -> None:
    named = {factory for kind in OWN.values() for factory in kind.values()}
    made = {type(scorer) for policy in build_policies(CostWeights()).values()
            for scorer, _ in policy.scorers}  # fmt: skip
    wrappers = "laar.policies.guarding"
    for module in pkgutil.iter_modules(laar.policies.__path__, "laar.policies."):
        for name, part in vars(import_module(module.name)).items():
            if module.name == wrappers or not inspect.isclass(part) or name.startswith("_"):
                continue
            is_part = any(vars(part).get(method) for method in ("score", "keep", "order"))
            if is_part and part.__module__ == module.name:
                assert part in named | made, f"{name} is missing in policies/own.py"


class Scores:
    """A scorer made from a function of the view."""

    def __init__(self, rule: Callable[[View], Any]) -> None:
        self.rule = rule

    def score(self, view: View) -> Any:
        return self.rule(view)


def shrinking(view: View) -> Any:
    view.tokens *= 0.5
    return np.ones(len(view.slots))


def by_place(view: View) -> Any:
    return 1.0 / (1.0 + np.arange(len(view.slots)))


def unseeded(view: View) -> Any:
    return np.random.default_rng().random(len(view.slots))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda view: np.full(len(view.slots), 7.0), "above 1"),
        (lambda view: -view.in_flight, "below 0"),
        (lambda view: view.table.waiting[view.slots] / 1e3, "never read: has scores that are not"),
        (lambda view: view.cached_tokens / view.tokens, "an empty prompt: .*not finite"),
        (lambda view: view.table.kv_usage[: len(view.slots)], "order of candidates does not"),
        (lambda view: np.ones(3), "a single candidate: has the shape"),
        (lambda view: view.table.nothing, "raises AttributeError"),
        (shrinking, "`tokens` was changed"),
        (by_place, "order of candidates does not matter"),
        (unseeded, "two runs differ"),
    ],
)  # fmt: skip
def test_the_checks_detect_a_scorer_that_breaks_the_contract(
    rule: Callable[[View], Any], said: str
) -> None:
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match=said):
        check_all(lambda: Scores(rule))


def test_the_checks_detect_an_invalid_filter_and_picker() -> None:
    class Numbers:
        def keep(self, view: View) -> Any:
            return np.ones(len(view.slots))

    class First:
        def order(self, scores: Any, view: View) -> Any:
            return [0] * len(scores)

    with pytest.raises(AssertionError, match="return booleans"):
        check_all(Numbers)
    with pytest.raises(AssertionError, match="not each exactly once"):
        check_all(First)
    policy = Policy(name="x", scorers=[(Scores(by_place), 1.0)], picker=First())
    with pytest.raises(AssertionError, match="not each exactly once"):
        check_all(lambda: policy)
