"""Chains of retries compared with a simple reimplementation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.capability import CapabilityModel
from laar.accuracy.difficulty import WORTH
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import Answered, OutcomeReports, Verdict
from support.artifacts import artifact
from support.artifacts import model as fitted
from support.exploring import examples

QA = Features("en", 4096, "qa")
MODELS = ("a", "b", "c", "d")


def hard_questions() -> tuple[OutcomeReports, OnlineOutcomes]:
    """Return reports and their outcomes, for questions that are equally hard for all models."""
    made = artifact({"a": fitted(1.4), "b": fitted(0.4)})
    retry = made.retry.model_copy(update={"difficulty": 2.0})
    capability = CapabilityModel(made.model_copy(update={"retry": retry}))
    online = OnlineOutcomes(capability, cap_per_hour=1e6)
    return OutcomeReports(online), online


def reports() -> tuple[OutcomeReports, OnlineOutcomes]:
    online = OnlineOutcomes(CapabilityModel())
    return OutcomeReports(online), online


def counted(online: OnlineOutcomes) -> dict[str, tuple[int, int]]:
    """Return the numbers of correct outcomes and of all outcomes by model."""
    by_model = online.by_model(0.0)
    return {name: (round(s.correct), round(s.outcomes)) for name, s in by_model.items()}


@settings(max_examples=examples(150))
@given(
    chains=st.lists(
        st.tuples(
            st.permutations(MODELS),
            st.integers(1, 4),  # number of attempts
            st.booleans(),  # whether the last attempt was correct
            st.sampled_from(["nothing", "last", "each", "last twice", "first and last"]),
        ),
        max_size=8,
    ),
    turns=st.randoms(use_true_random=False),
)
def test_each_attempt_of_a_reported_chain_counts_once_and_no_other_counts(chains, turns) -> None:  # type: ignore[no-untyped-def]
    told, online = reports()
    expected: dict[str, list[int]] = {}
    steps = []
    for number, (order, attempts, right, style) in enumerate(chains):
        steps.append([])
        for at in range(attempts):
            correct = right and at == attempts - 1
            steps[-1].append(("decide", number, order[at], tuple(order[:at]), f"{number}.{at}"))
            last = at == attempts - 1
            if (
                style == "each"
                or (last and style != "nothing")
                or (style[:5] == "first" and not at)
            ):
                times = 2 if style == "last twice" else 1
                steps[-1].extend([("report", f"{number}.{at}", correct)] * times)
            if style != "nothing":
                count = expected.setdefault(order[at], [0, 0])
                count[0] += correct
                count[1] += 1
    while any(steps):  # chains of several clients are interleaved
        step = turns.choice([left for left in steps if left]).pop(0)
        if step[0] == "decide":
            _, request, model, tried, name = step
            told.decided(name, model, QA, tried, request=request)
        else:
            told.report(step[1], step[2], 0.0)
    assert counted(online) == {model: tuple(count) for model, count in expected.items()}


def test_a_retry_is_not_chained_to_another_client_with_the_same_request() -> None:
    told, online = reports()
    for attempt in ("x.0", "y.0"):
        told.decided(attempt, "a", QA, (), request="the same")
    told.decided("x.1", "b", QA, ("a",), request="the same")
    assert told.report("x.1", True, 0.0) is Verdict.TAKEN
    assert told.report("y.0", True, 0.0) is Verdict.TAKEN  # its answer was correct
    assert counted(online) == {"a": (1, 1), "b": (1, 1)}


def test_a_chain_ends_at_a_forgotten_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar.accuracy.reports.MAX_PENDING", 2)
    told, online = reports()
    for at, model in enumerate("abc"):
        told.decided(model, model, QA, tuple("abc"[:at]), request=1)
    assert told.report("c", True, 0.0) is Verdict.TAKEN
    assert counted(online) == {"c": (1, 1), "b": (0, 1)}
    assert len(told) == 2


def test_forgotten_decisions_leave_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar.accuracy.reports.MAX_PENDING", 3)
    told, _ = reports()
    for at in range(50):
        told.decided(str(at), "a", QA, ("b",) * (at % 3), request=at % 7)
        told.moved(str(at), "cd"[at % 2])
    assert len(told) == 3
    assert len(told._latest) <= 3


def test_an_outcome_counts_for_the_model_that_answered() -> None:
    told, online = reports()
    told.decided("1", "a", QA, (), request=7)
    told.moved("1", "b")
    # Tried `a`, so it does not continue decision 1, which `b` answered.
    told.decided("2", "c", QA, ("a",), request=7)
    told.decided("3", "d", QA, ("b",), request=7)
    told.report("2", True, 0.0)
    assert counted(online) == {"c": (1, 1)}
    told.report("3", True, 0.0)
    assert counted(online) == {"c": (1, 1), "d": (1, 1), "b": (0, 1)}


def test_a_judged_answer_includes_the_attempts_and_time_since_the_first_one() -> None:
    told, _ = reports()
    seen: list[Answered] = []
    told.on_answered = seen.append
    told.decided("1", "a", QA, (), request="q", policy="laar", now=10.0)
    told.ended("1", 2.0)
    told.decided("2", "b", QA, ("a",), request="q", policy="laar", now=13.0)
    told.ended("2", 4.0)
    told.report("2", True, 20.0)
    told.report("2", True, 21.0)  # the repeated report has no effect
    assert seen == [Answered("laar", "qa", True, 2, 7.0)]
    told.decided("3", "b", QA, ("a",), request="another", policy="laar", now=30.0)
    told.report("3", False, 31.0)  # neither the first attempt nor the end was seen
    assert seen[1:] == [Answered("laar", "qa", False, 2, None)]


def test_a_refused_attempt_is_not_a_wrong_answer_of_its_model() -> None:
    told, online = reports()
    told.decided("1", "a", QA, (), request="r")
    told.ended("1", 1.0)
    told.decided("2", "b", QA, ("a",), request="r")
    told.failed("2", refused=True)  # for example by a 503
    told.decided("3", "c", QA, ("a", "b"), request="r")
    told.ended("3", 1.0)
    assert told.report("3", True, 0.0) is Verdict.TAKEN
    assert counted(online).keys() == {"a", "c"}
    told.report("3", True, 0.0)
    assert counted(online).keys() == {"a", "c"}
    assert told.outcome_of("2") is None


def test_reports_on_an_attempt_without_an_answer_are_rejected() -> None:
    told, online = reports()
    told.decided("1", "a", QA, (), request="r")
    told.decided("2", "b", QA, ("a",), request="r")
    told.failed("2", refused=True)
    assert told.report("2", False, 0.0) is Verdict.UNANSWERED  # the client reports a failure
    assert counted(online) == {"a": (0, 1)}
    assert told.outcome_of("2") is None
    told.decided("3", "c", QA, (), request="s")
    told.failed("3", refused=False)  # the client disconnected after reading enough of the answer
    assert told.report("3", True, 0.0) is Verdict.TAKEN


@pytest.mark.parametrize("before", [(), ("c",)])
def test_an_answer_after_refusals_counts_as_if_there_had_been_none(
    before: tuple[str, ...],
) -> None:
    learned = []
    for refused in (False, True):
        told, online = hard_questions()
        for number in range(200):
            tried, asked = before, f"{number}"
            if refused:  # refused twice, as a retry may return to the same model
                for at in range(2):
                    told.decided(f"{number}.{at}", "a", QA, tried, request=asked)
                    told.failed(f"{number}.{at}", refused=True)
                    tried = (*tried, "a")
            told.decided(f"{number}.b", "b", QA, tried, request=asked)
            told.report(f"{number}.b", number % 5 < 3, 0.0)
        learned.append(float(online.probabilities(("b",), QA, 0.0)[0]))
    assert learned[1] == pytest.approx(learned[0])


@given(
    order=st.lists(st.sampled_from("ab"), min_size=2, max_size=6),
    fixed=st.booleans(),
    correct=st.booleans(),
)
def test_repeats_show_what_repeats_are_worth_and_nothing_else(
    order: list[str], fixed: bool, correct: bool
) -> None:
    told, online = reports()
    for at, model in enumerate(order):
        told.decided(str(at), model, QA, tuple(order[:at]), request=1, reproducible=fixed)
    assert told.report(str(len(order) - 1), correct, 0.0) is Verdict.TAKEN
    firsts = [at for at, model in enumerate(order) if model not in order[:at]]
    right = {order[at]: int(correct and at == len(order) - 1) for at in firsts}
    assert counted(online) == {model: (right[model], 1) for model in right}
    for model in set(order):
        if fixed or order.count(model) == 1:
            assert online.repeats.share(model) == WORTH
        elif order.count(model) == 2 or not correct:
            was_right = correct and order[-1] == model
            assert (online.repeats.share(model) > WORTH) == was_right


@pytest.mark.parametrize("seed", range(4))
def test_the_worth_of_repeats_is_learned_from_repeats_of_repeats(seed: int) -> None:
    rng = random.Random(seed)
    _, online = hard_questions()
    worth, learned = rng.uniform(0.3, 0.9), []
    for number in range(4000):
        tried = ("b",) * rng.randint(0, 1) + ("a",) * rng.randint(1, 4)
        row = online.capability.given_failures(online.probabilities("ab", QA, 0.0), "ab", tried)
        correct = rng.random() < row[0] * worth ** tried.count("a")
        assert online.observe("a", QA, correct, 0.0, tried=tried)
        learned += [online.repeats.share("a")] * (number > 500)
    assert sum(learned) / len(learned) == pytest.approx(worth, abs=0.08)


@given(times=st.integers(1, 9), correct=st.booleans())
def test_an_answer_that_is_only_repeated_is_no_evidence_against_others(
    times: int, correct: bool
) -> None:
    learned = []
    for tried in (("a",), ("a",) * times):
        _, online = hard_questions()
        online.observe("b", QA, correct, 0.0, tried=tried, reproducible=True)
        learned.append(online.probabilities("b", QA, 0.0).item())
    assert learned[0] == learned[1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_some_tenants_ask_each_other_keeps_its_share(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each asks in bursts, and repeats questions, so that attempts are chained."""
    rng = random.Random(seed)
    tenants = ["one", "two", "three", "four"][: rng.randint(2, 4)]
    most = rng.randint(len(tenants), 12)
    monkeypatch.setattr("laar.accuracy.reports.MAX_PENDING", most)
    told, _ = reports()
    asked: dict[str, list[str]] = {tenant: [] for tenant in tenants}
    tenant = "one"
    for at in range(300):
        tenant = rng.choice(tenants) if rng.random() < 0.1 else tenant
        tried = rng.choice(((), ("a",)))
        told.decided(f"{at}", "b", QA, tried, request=rng.randrange(3), tenant=tenant)
        asked[tenant].append(f"{at}")
        for ids in asked.values():  # its latest; what one leaves the other may have
            assert all(map(told.knows, ids[-(most // len(tenants)) :]))
        assert len(told) == min(at + 1, most)
        told.report(rng.choice(rng.choice([ids for ids in asked.values() if ids])), False, at)
