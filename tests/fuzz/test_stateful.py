"""Director, prefix index and flow queue stay consistent in any history of requests and endpoints.

`FUZZ_EXAMPLES` and `FUZZ_STEPS` make the test longer, as `make fuzz` does.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.online import OnlineOutcomes
from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings
from laar.core.director import Director
from laar.errors import RequestError
from laar.fleet.endpoints import EndpointTable, Reading
from laar.fleet.membership import EndpointSpec
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.plugins import own
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
STEPS = int(os.environ.get("FUZZ_STEPS", "40"))
ADDRESSES = [f"10.0.0.{n}:80" for n in range(1, 6)]
MODELS = ["a", "b"]


class Fleet(RuleBasedStateMachine):
    """Requests arrive, wait, are sent, answered, moved and end, while endpoints join and leave."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.table = EndpointTable()
        self.prefixes = PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 20)
        self.online = OnlineOutcomes()
        self.director = Director(
            self.table,
            build_policies(CostWeights()),
            DirectorSettings(),
            plugins=own(),
            rng=random.Random(1),
            assessor=CapabilityAssessor(CapabilityModel(), self.online),
            prefixes=self.prefixes,
        )
        self.admission = Admission(
            self.director,
            FlowSettings(
                max_waiting=6,
                max_hold_s=30.0,
                max_requests=3,
            ),
        )
        self.going = []
        self.waiting = set()
        self.count = 0
        self.members = set()

    def later(self, seconds):
        self.now += seconds

    def take(self, outcomes):
        for outcome in outcomes:
            self.waiting.remove(outcome.ticket)
            assert outcome.waited_s >= 0.0
            if isinstance(outcome.verdict, Decision):
                self.going.append(outcome.verdict)
            else:
                assert isinstance(outcome.verdict, RequestError), outcome.verdict

    @rule(members=st.sets(st.sampled_from(range(5))), wait=st.floats(0.0, 5.0))
    def endpoints_change(self, members, wait):
        self.later(wait)
        specs = [EndpointSpec(address=ADDRESSES[n], models=(MODELS[n % 2],)) for n in members]
        self.table.replace("test", specs)
        self.members = {ADDRESSES[n] for n in members}
        self.take(self.admission.dispatch(self.now))

    @rule(
        model=st.sampled_from(["auto", "a", "b", "unknown", ""]),
        api=st.sampled_from([Api.CHAT, Api.CHAT, Api.OPAQUE]),
        text=st.sampled_from(["x", "shared " * 200, "shared " * 2000, "other " * 300]),
        tenant=st.sampled_from(["", "t", "u"]),
        priority=st.integers(-1, 1),
        tried=st.sampled_from(["", "a", "a,b", "b,b,b"]),
        subset=st.none() | st.sets(st.sampled_from(ADDRESSES), max_size=2),
        shadow=st.booleans(),
    )
    def a_request_comes(self, model, api, text, tenant, priority, tried, subset, shadow):
        self.count += 1
        request = Request(
            id=str(self.count),
            api=api,
            model=model,
            spans=(text,) if api is Api.CHAT else (),
            question=text,
            chars=len(text),
            body_bytes=len(text),
            tenant=tenant,
            priority=priority,
            tried=tried,
            subset=None if subset is None else frozenset(subset),
            shadow=shadow,
        )
        try:
            answer = self.admission.ask(request, self.now)
        except RequestError:
            pass  # no endpoint serves it, or the queue is full
        else:
            if isinstance(answer, Decision):
                self.going.append(answer)
                assert answer.address in self.members
                assert subset is None or answer.address in subset
            else:
                self.waiting.add(answer)
        self.take(self.admission.dispatch(self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_client_that_waits_leaves(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        if self.admission.queue.cancel(ticket):
            self.waiting.remove(ticket)

    @precondition(lambda self: self.going)
    @rule(data=st.data(), at=st.integers(0, 4))
    def envoy_serves_it_elsewhere(self, data, at):
        decision = data.draw(st.sampled_from(self.going))
        self.director.served_by(decision, ADDRESSES[at], self.now)
        self.admission.moved(decision, self.now)

    @precondition(lambda self: self.going)
    @rule(data=st.data(), wait=st.floats(0.0, 20.0), ok=st.booleans())
    def an_answer_begins(self, data, wait, ok):
        self.later(wait)
        decision = data.draw(st.sampled_from(self.going))
        self.director.answering(decision, self.now)
        self.admission.answering(decision, ok=ok)
        self.take(self.admission.dispatch(self.now))

    @precondition(lambda self: self.going)
    @rule(
        data=st.data(),
        status=st.sampled_from([200, 200, 429, 503, 404, None]),
        cause=st.sampled_from(["complete", "reset", "disconnect"]),
        tokens=st.none() | st.integers(0, 10_000),
        cached=st.none() | st.integers(0, 20_000),
        twice=st.booleans(),
    )
    def a_request_ends(self, data, status, cause, tokens, cached, twice):
        decision = data.draw(st.sampled_from(self.going))
        self.going.remove(decision)
        end = Completion(
            status=status,
            cause=cause,
            latency_s=max(0.0, self.now - decision.now),
            prompt_tokens=tokens,
            cached_tokens=cached,
        )
        for _ in range(1 + twice):
            self.director.settle(decision, end)
            self.admission.ended(decision, self.now)
        if decision.view is not None and decision.view.cell is not None:
            self.online.observe(decision.model, decision.view.cell, status == 200, self.now)
        self.take(self.admission.dispatch(self.now))

    @rule(
        at=st.integers(0, 4),
        waiting=st.sampled_from([0.0, 3.0, 500.0, float("nan")]),
        usage=st.sampled_from([0.0, 0.99, float("nan")]),
        capacity=st.sampled_from([float("nan"), 100.0, 1e6]),
    )
    def a_page_is_read(self, at, waiting, usage, capacity):
        reading = Reading(waiting=waiting, running=0.0, kv_usage=usage, capacity_tokens=capacity)
        slot = self.table.read(ADDRESSES[at], reading, self.now)
        if slot >= 0:
            self.prefixes.set_capacity(slot, capacity)

    @rule(seconds=st.floats(0.0, 40.0))
    def time_passes(self, seconds):
        self.later(seconds)
        self.take(self.admission.dispatch(self.now))

    @invariant()
    def counts_match(self):
        live = [d for d in self.going if not d.flight.settled]
        counted = sum(1 for d in live if self.table.slot(d.address) == d.slot)
        assert self.table.in_flight.min(initial=0) >= 0
        assert self.table.in_flight.sum() >= counted
        assert self.table.queued_tokens.min(initial=0.0) > -1e-6
        assert self.admission.queue.waiting == len(self.waiting)
        assert not self.director.degraded

    def teardown(self):
        self.admission.draining = True
        outcomes = self.admission.dispatch(self.now)
        self.going += [each.verdict for each in outcomes if isinstance(each.verdict, Decision)]
        assert not self.admission.queue.waiting
        for decision in self.going:
            self.director.settle(decision, Completion(status=None, cause="disconnect", latency_s=0))
            self.admission.ended(decision, self.now)
        assert not self.table.in_flight.any()
        assert abs(float(self.table.queued_tokens.sum())) < 1e-6


Fleet.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_counts_match_after_any_history = pytest.mark.timeout(0)(Fleet.TestCase)
