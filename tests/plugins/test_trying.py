"""Endpoints whose pace is not known are tried, and that costs no request much."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.fleet.membership import EndpointSpec
from laar.health.explained import Shown
from laar.request import Api, Request
from support.directors import director_of


def counted(
    took_s: dict[str, float], *, ok: bool = True, owned: float = 0, busy: bool = False, **of: object
) -> Counter[tuple[str, str]]:
    """Count 220 requests, 2 s apart, by endpoint and reason.

    One endpoint is `old`, the other one joins later, has the same model, and is 50 ms away. Another
    picker owns it, has just sent a request with the probability `owned`, and sends some if `busy`.
    """
    d = director_of("old:1", seed=3)
    counts = Counter[tuple[str, str]]()
    for number in range(-20, 200):
        if number == 0:
            d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in took_s])
        now = 2.0 * number
        d.table.round_trip("old:1", 0.0, now)
        d.table.round_trip("new:1", 0.05, now)
        if owned and (new := d.table.slot("new:1")) >= 0:
            d.table.unseen = np.zeros(d.table.capacity)
            d.table.unseen[new] = owned
            if busy:
                d.engines.traffic.send(new, now, 0.01, 1.0, shown=True, counted=True)
                d.engines.traffic.read(new, now, 0.01, 1.0, shown=True)
        request = Request(id="r", api=Api.CHAT, model="m", question=f"q{number}", chars=400, **of)  # type: ignore[arg-type]
        decision = d.decide(request, now)
        counts[decision.address, decision.reason] += 1
        d.settle(decision, Completion(
            status=200 if ok or decision.address == "old:1" else 400, completion_tokens=20,
            cause="complete", latency_s=took_s[decision.address],
            shown=Shown("chat", 50, "content", number),
        ))  # fmt: skip
    return counts


def test_a_slow_replica_is_tried_only_a_few_times() -> None:
    counts = counted({"old:1": 0.2, "new:1": 1.0})
    assert counts["new:1", "try"] >= 1
    assert counts["new:1", "try"] + counts["new:1", "laar"] <= 10


@pytest.mark.parametrize("owned", [0.1, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("busy", [True, False])
def test_a_replica_is_tried_unless_its_owner_has_just_sent_a_request(
    owned: float, busy: bool
) -> None:
    counts = counted({"old:1": 0.2, "new:1": 1.0}, owned=owned, busy=busy)
    assert (counts["new:1", "try"] > 0) == (owned < 0.5 or not busy)


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
            paces.learn(slot, 1.0, 0.001, 0.0, (0.0, 0.0), first=False)
    paces.work_out_all(0.0)
    assert paces.outlook(slots) is None
    paces.work_out_all(3600.0)
    assert paces.outlook(slots) is not None
