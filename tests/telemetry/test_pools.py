"""The signal for autoscalers rises before answers are late, and falls when work is done."""

from __future__ import annotations

import pytest

from laar.core.decision import Completion, Decision
from laar.errors import RequestError
from laar.fleet.membership import POOL_LABEL, EndpointSpec
from laar.flow.admission import Admission, Waited
from laar.flow.settings import FlowSettings
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Request
from laar.telemetry.pools import PoolMetrics
from support.directors import director_of
from support.requests import request_of

PROMPT = 40_000  # characters, whose prefill takes a second by the plain assessor's estimate


class Fleet:
    def __init__(self, *specs: EndpointSpec) -> None:
        self.now = 0.0
        prefixes = PrefixBeliefs(key=b"k", max_bytes=1 << 24)
        self.director = director_of(*specs, prefixes=prefixes)
        self.settings = FlowSettings()
        self.pools = PoolMetrics(self.director, self.settings, clock=lambda: self.now)
        self.director.watch(decided=self.pools.decided)
        self._asked = 0

    def request(self, **fields: object) -> Request:
        self._asked += 1
        return request_of(f"{self._asked} " + "x" * PROMPT, **fields)

    def ask(self, **fields: object) -> Decision:
        return self.director.decide(self.request(**fields), self.now)


def endpoint(address: str, pool: str = "") -> EndpointSpec:
    labels = {POOL_LABEL: pool} if pool else {}
    return EndpointSpec(address=address, models=("m",), labels=labels)


def test_work_is_the_seconds_of_prompts_not_yet_prefilled() -> None:
    fleet = Fleet(endpoint("a:1"), endpoint("b:1"))
    assert fleet.pools.work_s() == {("", "m"): 0.0}
    decisions = [fleet.ask() for _ in range(4)]
    # Each takes a second, and a sixth more for attention.
    assert 4.0 < fleet.pools.work_s()["", "m"] < 5.0
    for decision in decisions[:2]:
        fleet.now += 1.0
        fleet.director.answering(decision, fleet.now)
    assert fleet.pools.work_s()["", "m"] < 2.5
    for decision in decisions:
        fleet.director.settle(
            decision, Completion(status=200, cause="complete", latency_s=fleet.now)
        )
    assert fleet.pools.work_s()["", "m"] == 0.0


def test_pools_are_distinguished() -> None:
    fleet = Fleet(endpoint("a:1", "one"), endpoint("b:1", "two"))
    fleet.ask(pool="one")
    work = fleet.pools.work_s()
    assert work["one", "m"] > 0.5
    assert work["two", "m"] == 0.0
    assert fleet.pools.requests() == {("one", "m"): 1.0}


def test_lateness_is_counted_at_the_decision_only_beyond_the_objective() -> None:
    fleet = Fleet(endpoint("a:1"))
    fleet.ask(ttft_objective_s=5.0)
    assert fleet.pools.expected_late() == {("", "m"): 0.0}
    for _ in range(10):
        fleet.ask(ttft_objective_s=5.0)
    late = fleet.pools.expected_late()["", "m"]
    assert 4 <= late <= 8  # those behind five seconds of prompts
    fleet.ask(ttft_objective_s=60.0)
    assert fleet.pools.expected_late()["", "m"] == late
    assert fleet.pools.requests()["", "m"] == 12


def test_a_request_held_past_its_objective_counts_as_late() -> None:
    fleet = Fleet(endpoint("a:1"))
    decision = fleet.ask(ttft_objective_s=5.0)
    fleet.pools.waited(Waited(ticket=1, verdict=decision, waited_s=1.0))
    assert fleet.pools.expected_late()["", "m"] == 0
    fleet.pools.waited(Waited(ticket=1, verdict=decision, waited_s=10.0))
    assert fleet.pools.expected_late()["", "m"] == 1


def test_requests_shed_by_flow_control_count_as_late() -> None:
    fleet = Fleet()
    settings = FlowSettings(max_waiting=2, max_hold_s=5.0)
    fleet.pools.admission = admission = Admission(fleet.director, settings)
    assert fleet.pools.requests() == {("", ""): 0.0}
    held, left = (admission.ask(fleet.request(), 0.0) for _ in range(2))
    assert isinstance(held, int)
    with pytest.raises(RequestError, match="queue is full"):
        admission.ask(fleet.request(), 0.0)
    assert fleet.pools.expected_late() == {("", ""): 1.0}
    assert not isinstance(left, Decision)
    admission.queue.cancel(left)  # as its client has disconnected
    assert [outcome.ticket for outcome in admission.dispatch(6.0)] == [held]
    assert fleet.pools.requests() == {("", ""): 2.0}
    assert fleet.pools.expected_late() == {("", ""): 2.0}


def test_work_held_by_flow_control_counts_although_no_endpoint_is_known() -> None:
    fleet = Fleet()
    fleet.pools.admission = admission = Admission(fleet.director, fleet.settings)
    assert isinstance(admission.ask(fleet.request(), 0.0), int)
    assert 0.5 < fleet.pools.work_s()["", ""] < 1.5


def test_work_held_for_a_pool_scaled_to_zero_shows_which_pool_to_start() -> None:
    fleet = Fleet(endpoint("a:1", pool="gold"), endpoint("b:1", pool="iron"))
    assert fleet.pools.work_s() == {("gold", "m"): 0.0, ("iron", "m"): 0.0}
    fleet.director.table.replace("t", [])
    fleet.pools.admission = admission = Admission(fleet.director, fleet.settings)
    assert isinstance(admission.ask(fleet.request(pool="gold"), 0.0), int)
    shown = fleet.pools.work_s()
    assert set(shown) == {("gold", "m")}
    assert 0.5 < shown["gold", "m"] < 1.5


def test_clients_cannot_create_series() -> None:
    fleet = Fleet(endpoint("a:1"))
    fleet.pools.admission = admission = Admission(fleet.director, fleet.settings)
    admission.ready = False
    for number in range(20):
        request = fleet.request(pool=f"p{number}")
        request.model = f"m{number}"
        admission.ask(request, 0.0)
    assert set(fleet.pools.work_s()) == {("", "m"), ("", "")}
