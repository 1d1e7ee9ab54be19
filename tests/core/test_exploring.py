"""Exploration gives little-known models a small share, and costs no request much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessor import Assessment, PlainAssessor
from laar.accuracy.capability import SpeedPrior
from laar.core import exploring
from laar.core.decision import Completion
from laar.core.director import Director
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.explain.sentence import sentence
from laar.health.explained import Shown
from laar.telemetry.decisions import DecisionMemory
from support.directors import director_of

MODELS = ("known", "thin", "slow")
EVIDENCE = {"known": 100.0, "thin": 5.0, "slow": 0.0}
SECONDS = {"known": 1.0, "thin": 1.5, "slow": 30.0}


class Known(PlainAssessor):
    """Assesses models with known and unknown accuracies, with or without reported outcomes."""

    def __init__(self, reported: dict[str, float] | None) -> None:
        self.reported = reported

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        reported = self.reported
        return replace(
            super().assess(request, models, tried, now),
            evidence=np.array([EVIDENCE[model] for model in models]),
            cell=("en", 4096, "qa"),
            reported=reported and np.array([reported.get(model, 0.0) for model in models]),
        )


def director(reported: dict[str, float] | None, **settings: object) -> Director:
    specs = (EndpointSpec(address=f"10.0.0.{at}:80", models=(m,)) for at, m in enumerate(MODELS))
    made = director_of(*specs, seed=5, assessor=Known(reported), **settings)
    made.engines.reassess(lambda model: SpeedPrior(answer_s=SECONDS[model]))
    return made


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more requests explore than in production, so that a test needs fewer."""
    monkeypatch.setattr(exploring, "EXPLORE_SHARE", 0.05)


def asked(d: Director, count: int = 2000, **more: object) -> dict[str, int]:
    """Count how often each model is chosen."""
    chosen = dict.fromkeys(MODELS, 0)
    for _ in range(count):
        request = Request(id="r", api=Api.CHAT, model="auto", question="q", chars=400, **more)  # type: ignore[arg-type]
        chosen[d.choose(request, 0.0).model] += 1
    return chosen


@pytest.mark.long
def test_a_small_share_of_requests_explores_the_least_known_model() -> None:
    chosen = asked(director({"known": 1.0}))
    assert 60 <= chosen["thin"] <= 140
    assert chosen["slow"] == 0  # too expensive, as its answer would take thirty times as long


@pytest.mark.long
@pytest.mark.parametrize(
    "request_of", [{"tried": "slow"}, {"ttft_objective_s": 5.0}, {"objective": "chat"}]
)
def test_a_retry_and_a_request_with_an_objective_never_explore(
    request_of: dict[str, object],
) -> None:
    assert asked(director({"known": 1.0}), **request_of)["thin"] == 0


@pytest.mark.parametrize(
    ("reported", "settings"),
    [
        (None, {}),
        ({"thin": 25.0}, {}),
        ({"known": 1.0}, {"policy": "least-loaded"}),
    ],
)
def test_nothing_is_explored_if_no_outcomes_are_reported(
    reported: dict[str, float] | None, settings: dict[str, object]
) -> None:
    d = director(reported, **settings)
    for _ in range(200):
        request = Request(id="r", api=Api.CHAT, model="auto", question="q", chars=400)
        assert d.choose(request, 0.0).reason != "explore"


def test_the_explanation_gives_the_number_of_known_outcomes() -> None:
    d = director({"known": 1.0, "thin": 2.0})
    while True:
        request = Request(id="r", api=Api.CHAT, model="auto", question="q", chars=400)
        decision = d.choose(request, 0.0)
        if decision.reason == "explore":
            break
    text = sentence(DecisionMemory(d.table, wall_clock=lambda: 0.0).record(decision))
    assert "thin" in text
    assert "only 7 outcomes" in text


def counted(
    took_s: dict[str, float], *, ok: bool = True, **more: object
) -> Counter[tuple[str, str]]:
    """Count 220 requests, 2 s apart, by endpoint and reason.

    One endpoint is `old`, the other one joins later, has the same model, and is 50 ms away.
    """
    d = director_of("old:1", seed=3)
    counts = Counter[tuple[str, str]]()
    for number in range(-20, 200):
        if number == 0:
            d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in took_s])
        now = 2.0 * number
        d.table.round_trip("old:1", 0.0, now)
        d.table.round_trip("new:1", 0.05, now)
        request = Request(id="r", api=Api.CHAT, model="m", question=f"q{number}", chars=400, **more)  # type: ignore[arg-type]
        decision = d.decide(request, now)
        counts[decision.address, decision.reason] += 1
        seconds = took_s[decision.address]
        useful = ok or decision.address == "old:1"
        d.settle(
            decision,
            Completion(
                shown=Shown("chat", 50, "content", number),
                status=200 if useful else 400,
                cause="complete",
                latency_s=seconds,
                completion_tokens=20,
            ),
        )
    return counts


def test_a_slow_replica_is_tried_only_a_few_times() -> None:
    counts = counted({"old:1": 0.2, "new:1": 1.0})
    assert counts["new:1", "try"] >= 1
    assert counts["new:1", "try"] + counts["new:1", "laar"] <= 10


@pytest.mark.parametrize(
    "request_of", [{"tried": "other"}, {"ttft_objective_s": 5.0}, {"objective": "chat"}]
)
def test_a_retry_and_a_request_with_an_objective_try_nothing(request_of: dict[str, object]) -> None:
    counts = counted({"old:1": 1.0, "new:1": 0.3}, **request_of)
    assert "try" not in {reason for _, reason in counts}


def test_a_replica_that_never_answers_usefully_is_tried_no_more_than_its_share() -> None:
    counts = counted({"old:1": 0.2, "new:1": 0.2}, ok=False)
    assert 1 <= counts["new:1", "try"] <= 100
    assert counts["new:1", "laar"] == 0


def test_a_fast_replica_soon_gets_most_requests() -> None:
    assert counted({"old:1": 1.0, "new:1": 0.3})["new:1", "laar"] >= 150


def test_a_pace_that_forty_answers_do_not_show_is_sought_again_after_a_while() -> None:
    d = director_of("old:1", "new:1")
    paces, slots = d.engines.paces, d.table.active
    paces.work_out_all(0.0)
    for count in range(40):
        assert paces.outlook(slots) is not None, count
        for slot in slots.tolist():
            paces.ended(slot, 0.2, None)
            paces.learn(slot, 1.0, 0.001, 0.0, (0.0, 0.0), first=False)
    paces.work_out_all(0.0)
    assert paces.outlook(slots) is None
    paces.work_out_all(3600.0)
    assert paces.outlook(slots) is not None
