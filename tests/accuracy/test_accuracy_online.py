"""P(correct) from reported outcomes: the posterior, its limits, its memory, and false reports."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy import online as online_module
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes, Taken
from laar.accuracy.reports import OutcomeReports, Verdict
from laar.accuracy.trust import SHARES, PriorTrust
from laar.request import Api, Request
from support.artifacts import artifact, model
from support.exploring import examples

QA = Features("en", 4096, "qa")
HOUR = 3600.0


def mean_of(online: OnlineOutcomes, prior: float, now: float, name: str = "a") -> float:
    return float(online.posterior(np.array([prior]), (name,), QA, now)[0][0])


@settings(max_examples=examples(50))
@given(st.lists(st.booleans(), max_size=60), st.floats(0.01, 0.99))
def test_the_posterior_is_the_mean_of_a_beta_distribution(
    outcomes: list[bool], prior: float
) -> None:
    online = OnlineOutcomes(half_life_s=math.inf)
    for correct in outcomes:
        assert online.observe("a", QA, correct, 0.0)
    expected = (50 * prior + sum(outcomes)) / (50 + len(outcomes))
    assert mean_of(online, prior, 0.0) == pytest.approx(expected)
    assert mean_of(online, prior, 0.0, "b") == pytest.approx(prior)


def test_outcomes_lose_half_of_their_weight_in_a_half_life() -> None:
    online = OnlineOutcomes(half_life_s=100.0)
    for _ in range(40):
        online.observe("a", QA, False, 0.0)
    for age_s in (0.0, 50.0, 100.0, 1000.0):
        n = 40 * 0.5 ** (age_s / 100)
        assert mean_of(online, 0.8, age_s) == pytest.approx(50 * 0.8 / (50 + n))


def test_a_model_replaced_under_the_same_name_is_noticed_within_hours() -> None:
    known = CapabilityModel(artifact({"a": model(2.2, cells=(("en", 4096, "qa", 500),))}))
    rng, online, now = random.Random(1), OnlineOutcomes(known), 0.0
    for right, hours in ((0.9, 72), (0.2, 6)):
        for _ in range(100 * hours):
            now += HOUR / 100
            online.observe("a", QA, rng.random() < right, now)
        # The model is right 90 % of the time at first, and 20 % after its replacement.
        assert (mean_of(online, 0.9, now) > 0.7) == (right > 0.7)


@settings(max_examples=30)
@given(
    gaps=st.lists(st.floats(0, 900), min_size=1, max_size=300),
    weight=st.floats(0.1, 1),
)
def test_no_hour_accepts_more_outcomes_than_the_cap(gaps: list[float], weight: float) -> None:
    online = OnlineOutcomes(cap_per_hour=20)
    now, taken = 0.0, []
    for gap in gaps:
        now += gap
        # At each moment, report until a report is rejected.
        while online.observe("a", QA, False, now, weight):
            taken.append(now)
    for start in taken:
        within = sum(weight for at in taken if start <= at < start + HOUR)
        assert within <= 20 + 1e-6


@pytest.mark.parametrize(
    ("weight", "offset", "now"),
    [
        (0, 0, 0),
        (-1, 0, 0),
        (1.5, 0, 0),
        (math.nan, 0, 0),
        (math.inf, 0, 0),
        (1, 2, 0),
        (1, math.nan, 0),
        (1, 0, math.nan),
        (1, 0, math.inf),
    ],
)
def test_invalid_outcomes_are_rejected(weight: float, offset: float, now: float) -> None:
    online = OnlineOutcomes()
    assert not online.observe("a", QA, True, now, weight, offset=offset)
    assert (online.refused, len(online.cells)) == (1, 0)


def test_the_oldest_cells_of_the_tenant_with_most_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online_module, "MAX_CELLS", 10)
    online = OnlineOutcomes()
    for number in range(5):
        online.observe(f"m{number}", QA, True, 0.0, tenant="modest")
    for number in range(5, 15):
        online.observe(f"m{number}", QA, True, 0.0, tenant="greedy")
    assert [int(model[1:]) for model, _ in online.cells] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("seed", range(5))
def test_a_tenant_that_uses_up_a_cell_leaves_others_their_share(seed: int) -> None:
    rng, online = random.Random(seed), OnlineOutcomes()
    tenants, taken = ["greedy", *"bcd"[: rng.randint(1, 3)]], Counter[str]()
    now = 0.0
    while now < 3600.0:
        now += rng.expovariate(1.0)
        tenant = "greedy" if rng.random() < 0.8 or now < 600.0 else rng.choice(tenants[1:])
        taken[tenant] += online.observe("a", QA, tenant != "greedy", now, tenant=tenant)
    for tenant in tenants[1:]:
        assert taken[tenant] >= 0.9 * online_module.CAP_PER_HOUR / 2 / len(tenants)
    assert taken["greedy"] <= online_module.CAP_PER_HOUR


def test_a_restart_does_not_reset_the_hourly_cap() -> None:
    full = OnlineOutcomes()
    while full.observe("a", QA, False, 0.0):
        pass
    again = OnlineOutcomes()
    again.restore(full.state(0.0), 0.0)
    assert not again.observe("a", QA, False, 0.0)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


@settings(max_examples=examples(100))
@given(json_values, st.lists(json_values, max_size=3))
def test_any_state_is_restored_without_an_error(state: object, cells: list[object]) -> None:
    online = OnlineOutcomes()
    assert online.restore(state, 0.0) == 0
    online.restore({"schema": 1, "features_schema": 1, "cells": cells, "repeats": cells}, 0.0)
    online.restore({"schema": 1, "features_schema": 1, "repeats": state}, 0.0)
    assert 0 < mean_of(online, 0.5, 0.0) < 1
    assert 0 <= online.repeats.share("") <= 1


def test_a_state_with_a_different_features_schema_is_not_restored() -> None:
    online = OnlineOutcomes()
    cells = [["a", "en", 4096, "qa", 1, 2, 0]]
    assert online.restore({"schema": 1, "features_schema": 2, "cells": cells}, 0.0) == 0
    assert online.restore({"schema": 2, "features_schema": 1, "cells": cells}, 0.0) == 0


LENGTHS = tuple(2**n for n in range(12, 20))


class Measured(CapabilityModel):
    """An artifact with the same probability for every model."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def probabilities(self, models, *_) -> np.ndarray:
        return np.full(len(models), self.probability)


def report(online: OnlineOutcomes, share: float, cells: int, each: int = 20) -> None:
    """Report `each` outcomes in each of the first cells; `share` of them are correct."""
    for length in LENGTHS[:cells]:
        for number in range(each):
            correct = number < share * each
            online.observe("a", Features("en", length, "qa"), correct, 0.0)


def test_an_artifact_loses_weight_only_if_outcomes_contradict_it() -> None:
    wrong, right = OnlineOutcomes(Measured(0.9)), OnlineOutcomes(Measured(0.2))
    report(wrong, 0.2, cells=4)
    report(right, 0.2, cells=4)
    assert wrong.prior_weights()["a"] <= 50 / 8
    assert right.prior_weights()["a"] == 50
    at = Features("en", LENGTHS[4], "qa")
    for _ in range(10):
        wrong.observe("a", at, False, 0.0)
    posterior = float(wrong.posterior(np.array([0.9]), ("a",), at, 0.0)[0][0])
    assert posterior < 0.5 < 50 * 0.9 / 60


def test_the_outcomes_of_a_cell_cannot_remove_its_own_prior() -> None:
    online = OnlineOutcomes(Measured(0.9), cap_per_hour=1000)
    report(online, 0.0, cells=1, each=100)
    assert mean_of(online, 0.9, 0.0) == pytest.approx(50 * 0.9 / 150)


def test_evidence_about_the_artifact_survives_a_restart() -> None:
    online = OnlineOutcomes(Measured(0.9))
    report(online, 0.2, cells=5)
    saved = orjson.loads(orjson.dumps(online.state(0.0)))
    again = OnlineOutcomes()
    again.restore(saved, 0.0)
    assert again.prior_weights() == online.prior_weights()
    for cell in saved["cells"]:
        del cell[-1]  # as written by an earlier version, without the priors
    older = OnlineOutcomes()
    assert older.restore(saved, 0.0) == 5
    assert older.prior_weights() == {}


def test_dropped_cells_are_no_evidence_against_the_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online_module, "MAX_CELLS", 5)
    online = OnlineOutcomes(Measured(0.9), half_life_s=100.0)
    report(online, 0.2, cells=5)
    assert online.prior_weights()["a"] < 50
    for number in range(5):
        online.observe(f"b{number}", QA, True, 10_000.0)  # displaces the old cells
    assert set(online.prior_weights().values()) == {50}


@settings(max_examples=examples(100))
@given(st.lists(st.booleans(), max_size=40), st.floats(0.05, 0.95), st.floats(1, 100))
def test_evidence_is_the_product_of_the_predictive_probabilities(
    outcomes: list[bool], prior: float, kappa: float
) -> None:
    trust = PriorTrust()
    expected = []
    for share in SHARES:
        weight, foretold = kappa * share, 0.0
        for seen, correct in enumerate(outcomes):
            mean = (weight * prior + sum(outcomes[:seen])) / (weight + seen)
            foretold += math.log(mean if correct else 1 - mean)
        expected.append(foretold)
    evidence = trust.evidence(prior, sum(outcomes), len(outcomes), kappa)
    assert evidence == pytest.approx(expected, abs=1e-6)


FITTED = artifact({m: model(1.0) for m in "abc"}, difficulty=2.0)


WRONG, RIGHT = artifact({"a": model(3.0)}), artifact({"a": model(-1.4)})


def one_in_five(capability: CapabilityModel, online: OnlineOutcomes) -> None:
    """Report outcomes in several cells; a fifth of them are correct."""
    online.capability = capability
    for task in ("a", "b", "c", "d"):
        for number in range(30):
            online.observe("a", Features("en", 4096, task), number % 5 == 0, 0.0)


def test_a_shared_outcome_is_evidence_about_the_receiving_pickers_artifact() -> None:
    here, there = OnlineOutcomes(CapabilityModel(RIGHT)), OnlineOutcomes()
    taken: list[Taken] = []
    there.on_taken = taken.append
    one_in_five(CapabilityModel(WRONG), there)
    assert all(here.heard(outcome, 0.0) for outcome in taken)
    assert there.prior_weights()["a"] < 50
    assert here.prior_weights()["a"] == 50


def test_probabilities_combine_the_prior_then_reports_then_failed_models() -> None:
    capability = CapabilityModel(FITTED)
    online = OnlineOutcomes(capability)
    for _ in range(50):
        online.observe("a", QA, False, 0.0)
    prior = capability.probabilities(("a", "b"), QA)
    weight = capability.measured("a", QA)
    assert weight > 50
    corrected = np.array([weight * prior[0] / (weight + 50), prior[1]])
    assert online.probabilities(("a", "b"), QA, 0.0) == pytest.approx(corrected)
    request = Request(id="r", api=Api.CHAT, question="Why?", chars=14_000, task="qa")
    found = CapabilityAssessor(capability, online).assess(request, ("a", "b"), ("b",), 0.0)
    assert found.cell == QA
    expected = capability.given_failures(corrected, ("a", "b"), ("b",))
    assert found.probability == pytest.approx(expected)


@pytest.mark.long
def test_a_model_that_is_only_tried_last_does_not_look_worse_than_it_is() -> None:
    """Failures of other models show that a question is hard, so worse outcomes are expected."""
    capability = CapabilityModel(FITTED)
    online = OnlineOutcomes(capability, cap_per_hour=1e9, half_life_s=math.inf)
    tried = ("b", "c")
    row = capability.probabilities(("a", *tried), QA)
    true = float(row[0])
    expected = float(capability.given_failures(row, ("a", *tried), tried)[0])
    rng = random.Random(2)
    for _ in range(4000):
        online.observe("a", QA, rng.random() < expected, 0.0, tried=tried)
    learned = float(online.probabilities(("a",), QA, 0.0)[0])
    assert abs(learned - true) < 0.05
    assert true - expected > 0.2


def test_each_report_gets_a_verdict_and_counts_once() -> None:
    capability = CapabilityModel(FITTED)
    online = OnlineOutcomes(capability, cap_per_hour=4)
    reports = OutcomeReports(online)
    for number in range(4):
        reports.decided(f"d{number}", "a", QA, ())
    said = [
        ("nowhere", True),
        ("d0", True),
        ("d0", True),
        ("d0", False),
        ("d1", False),
        ("d2", False),
    ]
    assert [reports.report(decision, correct, 0.0) for decision, correct in said] == [
        Verdict.UNKNOWN,
        Verdict.TAKEN,
        Verdict.REPEATED,
        Verdict.CONTRADICTORY,
        Verdict.TAKEN,
        Verdict.LIMITED,
    ]
    assert reports.verdicts[Verdict.TAKEN] == 2
    prior = float(capability.probabilities(("a",), QA)[0])
    learned = float(online.probabilities(("a",), QA, 0.0)[0])
    weight = capability.measured("a", QA)
    assert learned == pytest.approx((weight * prior + 1) / (weight + 2))


def test_the_oldest_decisions_beyond_the_cap_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("laar.accuracy.reports.MAX_PENDING", 3)
    reports = OutcomeReports(OnlineOutcomes(CapabilityModel()))
    for number in range(5):
        reports.decided(f"d{number}", "a", QA, ())
    verdicts = [reports.report(f"d{number}", True, 0.0) for number in range(5)]
    assert verdicts == [Verdict.UNKNOWN] * 2 + [Verdict.TAKEN] * 3
