"""A failure may be the endpoint's fault, the request's, or due to load."""

import math
import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.decision import Completion
from laar.health import Health, HealthSettings, Kind, Reply, standing_of
from laar.health.breaker import State
from laar.health.requests import Clients
from laar.request import Api, Request
from support.directors import director_of
from support.exploring import examples
from support.requests import request_of
from support.speed import times_as_long

ADDRESSES = tuple(f"10.0.0.{n}:80" for n in range(1, 6))
ATTEMPTS = 3


class Fleet:
    """A director with Envoy's retries as the picker sees them, without delays."""

    def __init__(self, *, endpoints=5, probes=True, seed=1):
        self.health = Health(HealthSettings(), rng=random.Random(seed))
        self.health.questions.are_asked = probes
        self.director = director_of(
            *ADDRESSES[:endpoints], seed=seed, policy="random", health=self.health
        )
        self.table = self.director.table
        self.dead = set()
        self.now = 1.0
        self.asked = dict.fromkeys(ADDRESSES, 0)

    def ask(self, *, poison=False, tenant="", session="", status=500):
        """Send a request; return its status (None: Envoy's own) and the number of attempts."""
        self.now += 0.02
        self._answer_questions()
        request = request_of("x" * 200, tenant=tenant, session=session, question="q")
        decision = self.director.decide(request, self.now)
        ranked = (decision.address, *decision.fallbacks)
        most = 1 if decision.once else ATTEMPTS
        asked = [ranked[n % len(ranked)] for n in range(most)]
        failed = []
        for address in asked:
            self.asked[address] += 1
            if not poison and address not in self.dead:
                self._end(decision, failed, address, 200)
                return 200, len(failed) + 1
            failed.append(address)
        if status is None:
            self.director.attempted(decision, tuple(failed), self.now)
            end = Completion(status=None, cause="error", latency_s=self.now - decision.now)
            self.director.settle(decision, end)
        else:
            self._end(decision, failed[:-1], failed[-1], status)
        return status, len(failed)

    def _end(self, decision, failed, address, status):
        if failed:
            self.director.attempted(decision, tuple(failed), self.now)
        if failed or address != decision.address:
            self.director.served_by(decision, address, self.now)
        self.director.replied(decision, Reply(status=status), self.now)
        end = Completion(status=status, cause="complete", latency_s=self.now - decision.now)
        self.director.settle(decision, end)

    def _answer_questions(self):
        for slot in self.health.questions.due(self.now, 16):
            dead = self.table.spec(slot).address in self.dead
            self.health.questions.answered(slot, Reply(status=500 if dead else 200), self.now, None)

    def states(self):
        return {
            self.table.spec(slot).address: endpoint.breaker.state
            for slot, endpoint in self.health.records.endpoints.items()
        }

    def openings(self):
        return sum(
            endpoint.breaker.openings for _, endpoint in self.health.records.endpoints.items()
        )


@pytest.mark.parametrize("probes", [True, False])
@pytest.mark.parametrize("status", [500, 503, None])
@pytest.mark.parametrize("named", [{"tenant": "bad"}, {"session": "s"}, {}])
def test_poison_requests_cost_one_attempt_each_and_exclude_no_endpoint(probes, status, named):
    fleet = Fleet(probes=probes)
    for _ in range(20):
        fleet.ask(tenant="good")
    attempts = []
    for _ in range(400):
        attempts.append(fleet.ask(poison=True, status=status, **named)[1])
        assert fleet.ask(tenant="good") == (200, 1)
    assert sum(attempts[10:]) <= 1.05 * len(attempts[10:])
    assert fleet.openings() == 0
    assert all(
        endpoint.failures.keys() <= {Kind.REQUEST}
        for _, endpoint in fleet.health.records.endpoints.items()
    )


@pytest.mark.long
def test_poison_among_similar_requests_costs_one_attempt_and_few_answers():
    fleet, attempts, lost = Fleet(), [], 0
    for n in range(800):
        if n == 400:
            fleet.dead.add(ADDRESSES[0])
        attempts.append(fleet.ask(poison=True)[1])
        lost += fleet.ask()[0] != 200
    assert sum(attempts[10:]) <= 1.2 * len(attempts[10:])
    assert lost <= 8
    states = fleet.states()
    assert states.pop(ADDRESSES[0]) in (State.OPEN, State.HALF_OPEN)
    assert set(states.values()) == {State.CLOSED}


@pytest.mark.long
@pytest.mark.parametrize("status", [500, None])
def test_a_dead_endpoint_is_excluded_although_half_of_the_traffic_is_poison(status):
    fleet = Fleet()
    for _ in range(100):
        fleet.ask(poison=True, tenant="bad", status=status)
        fleet.ask(tenant="good")
    fleet.dead.add(ADDRESSES[0])
    fleet.asked[ADDRESSES[0]] = 0
    ended = []
    for _ in range(500):
        fleet.ask(poison=True, tenant="bad", status=status)
        before = fleet.asked[ADDRESSES[0]]
        assert fleet.ask(tenant="good")[0] == 200
        ended.append(fleet.asked[ADDRESSES[0]] - before)
    assert sum(ended) <= 5
    states = fleet.states()
    assert states.pop(ADDRESSES[0]) in (State.OPEN, State.HALF_OPEN)
    assert set(states.values()) == {State.CLOSED}


@pytest.mark.parametrize("probes", [True, False])
def test_if_the_whole_fleet_fails_no_request_is_at_fault(probes):
    fleet = Fleet(probes=probes)
    for n in range(100):
        fleet.ask(tenant=f"t{n % 5}")
    fleet.dead.update(ADDRESSES)
    for n in range(600):
        fleet.ask(tenant=f"t{n % 5}")
    request = Request(id="r", api=Api.CHAT, model="m", spans=("y",), chars=1, tenant="t1")
    decision = fleet.director.choose(request, fleet.now)
    assert decision.reason == "all-failing"
    assert len(decision.fallbacks) == 2
    fleet.dead.clear()
    for n in range(50):
        assert fleet.ask(tenant=f"t{n % 5}")[0] == 200


def test_a_tenant_that_has_fixed_its_requests_has_fallbacks_again():
    fleet = Fleet()
    for _ in range(50):
        fleet.ask(poison=True, tenant="bad")
        fleet.ask(tenant="good")
    for _ in range(16):
        assert fleet.ask(tenant="bad") == (200, 1)
    fleet.dead.add(ADDRESSES[0])
    assert [fleet.ask(tenant="bad")[0] for _ in range(30)] == [200] * 30


def test_one_endpoint_that_fails_all_prompts_of_a_session_is_at_fault_itself():
    blame = Clients()
    for n in range(20):
        blame.bad((0,), (7,), "", float(n))
    assert not blame.is_culprit((7,), 20.0)
    blame.bad((1,), (7,), "", 21.0)
    assert blame.is_culprit((7,), 21.0)
    assert not blame.is_culprit((7,), 200.0)


def test_the_number_of_traits_is_bounded_and_those_in_use_stay():
    blame = Clients()
    for n in range(10_000):
        blame.bad((0, 1), (-1, n), "", 1.0)
    assert len(blame.known) == 1024
    assert blame.is_culprit((-1,), 1.0)


# -- how many may be excluded ----------------------------------------------------------------------


def answered(health, slot, status, now):
    (attempt,) = sent(health, now, 1, slot)
    health.replied(attempt, Reply(status=status), now + 0.1)
    health.ended(attempt, status, "complete", now + 0.1)


@pytest.mark.parametrize("fails_always", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5, 10, 16])
def test_most_of_a_fleet_is_excluded_only_if_the_excluded_answer_nothing(size, fails_always):
    health, slots = Health(HealthSettings(), rng=random.Random(1)), range(size)
    rounds = [500] * 8 if fails_always else [500, 500, 200] * 8 + [500, 500]
    for count, status in enumerate([200] * 4 + rounds):
        for slot in slots:
            answered(health, slot, status if slot else 200, 1.0 + count)
    standing = standing_of(health.records, np.array(slots), 2.0 + count)
    failing = size - 1
    assert len(standing.left_out) == (failing if fails_always else min(failing, int(0.7 * size)))
    assert 0 not in standing.left_out


# -- refusals for load -----------------------------------------------------------------------------


def sent(health, now, count, slot=0):
    return [
        health.sent(slot, "m", stream=False, predicted_s=0.1, tokens=10.0, now=now)
        for _ in range(count)
    ]


def full(health, now, slot=0):
    standing = standing_of(health.records, np.array([0, 1]), now)
    return slot in standing.left_out


def known(now=1.0):
    health = Health(HealthSettings(), rng=random.Random(1))
    for slot in (0, 1):
        health.records.of(slot, "m", now)
    return health


def test_a_load_refusal_only_limits_the_requests_in_flight():
    health = known()
    attempts = sent(health, 1.0, 10)
    for attempt in attempts[6:]:
        health.replied(attempt, Reply(status=503, text=b"engine is currently busy"), 1.1)
        health.ended(attempt, 503, "complete", 1.1)
    assert full(health, 1.2)  # as it accepted six
    for attempt in attempts[:6]:
        health.replied(attempt, Reply(status=200), 1.3)
        health.ended(attempt, 200, "complete", 1.3)
    assert not full(health, 1.3)
    assert health.answers(0, 1.3) == 1.0
    sent(health, 1.3, 6)
    assert full(health, 1.3)
    assert not full(health, 7.0)  # after some time it may have more room


def test_an_endpoint_that_refuses_with_nothing_in_flight_pauses():
    health = known()
    (attempt,) = sent(health, 1.0, 1)
    health.replied(attempt, Reply(status=429), 1.1)
    health.ended(attempt, 429, "complete", 1.1)
    assert full(health, 1.5)
    assert not full(health, 2.5)


@pytest.mark.parametrize("page_first", [True, False])
def test_refusals_counted_by_a_metrics_page_are_not_failures(page_first):
    health = known()
    attempts = sent(health, 1.0, 20)
    if page_first:
        health.read(0, math.nan, 14.0, 1.1)
    for attempt in attempts[6:]:
        health.passed_over(0, 1.2, attempt)
    if not page_first:
        assert health.answers(0, 1.2) < 0.5
        health.read(0, math.nan, 14.0, 2.0)
    assert health.answers(0, 2.0) == pytest.approx(1.0, abs=0.01)
    assert health.records.endpoints[0].breaker.state is State.CLOSED
    assert health.records.endpoints[0].breaker.limit(2.0) == pytest.approx(6.0, rel=0.2)
    (more,) = sent(health, 3.0, 1)
    health.passed_over(0, 3.0, more)
    assert health.answers(0, 3.0) < 1.0  # the fourteen refusals on the page have all been counted


@pytest.mark.parametrize("retry_after_s", [1e9, -5.0, 0.0, None])
def test_no_retry_after_excludes_an_endpoint_for_more_than_a_minute(retry_after_s):
    health = known()
    now = 1.0
    for _ in range(10):
        (attempt,) = sent(health, now, 1)
        health.replied(attempt, Reply(status=503, retry_after_s=retry_after_s, text=b"overloaded"),
                       now)  # fmt: skip
        health.ended(attempt, 503, "complete", now)
        now += 0.01
    assert not full(health, now + 31.0)
    (attempt,) = sent(health, now + 31.0, 1)
    health.replied(attempt, Reply(status=200), now + 31.0)
    assert health.answers(0, now + 31.0) > 0.95


# -- adapters --------------------------------------------------------------------------------------


def test_adapters_that_come_and_go_are_forgotten():
    health, now = known(), 1.0
    for n in range(1000):
        for status, name in ((200, f"good-{n}"), (500, f"bad-{n}")):
            attempt = health.sent(
                0, "m", stream=False, predicted_s=0.1, tokens=1.0, now=now, name=name
            )
            health.replied(attempt, Reply(status=status), now)
            health.ended(attempt, status, "complete", now)
            now += 1.0
    endpoint = health.records.endpoints[0]
    assert len(endpoint.proved_at) + len(endpoint.in_a_row) <= 128
    assert endpoint.is_proved(now)


# -- silence ---------------------------------------------------------------------------------------


def halted_at(health, until=8.0):
    """Return when slot 0 is excluded if its streams stall while new ones begin."""
    now = 1.0
    while now < until:
        now += 0.1
        attempt, sibling = sent_stream(health, now, 0), sent_stream(health, now, 1)
        health.answering(attempt, now + 0.01)
        health.answering(sibling, now + 0.01)
        health.ended(sibling, 200, "complete", now + 0.05)
        health.look(now)
        if health.records.endpoints[0].breaker.is_out:
            return now
    return None


def sent_stream(health, now, slot):
    attempt = health.sent(slot, "m", stream=True, predicted_s=0.05, tokens=10.0, now=now)
    health.replied(attempt, Reply(status=200), now, read=True)
    return attempt


def test_stalled_streams_exclude_an_endpoint_although_others_begin_there():
    assert halted_at(known()) is not None


def test_an_answer_that_pauses_does_not_exclude_an_endpoint_that_answers_others():
    health, now = known(), 1.0
    paused = sent_stream(health, now, 0)
    health.answering(paused, now)
    while now < 60.0:
        now += 0.25
        for slot in (0, 1):
            other = sent_stream(health, now, slot)
            health.answering(other, now + 0.01)
            health.ended(other, 200, "complete", now + 0.05)
        health.look(now + 0.1)
        assert not health.records.endpoints[0].breaker.is_out
    health.ended(paused, 200, "complete", now)
    assert health.answers(0, now) > 0.9


STEPS = st.tuples(st.integers(0, 2), st.sampled_from(["sent", "begun", "done", "done", "look"]))


@settings(max_examples=examples(100))
@given(
    steps=st.lists(st.tuples(STEPS, st.floats(0.02, 0.6)), min_size=20, max_size=90),
    looks=st.integers(1, 5),
    silent=st.integers(0, 2),
)
def test_silence_is_found_in_pieces_as_in_one_check(steps, looks, silent):
    def run(most: int) -> list[object]:
        """Return what is known after each check of at most so many attempts at a time."""
        health, now, seen = known(), 1.0, []
        health.records.of(2, "m", now)
        with mock.patch("laar.health.health._LOOKS", most):
            for (slot, step), gap_s in steps:
                now += gap_s
                if step != "look":
                    attempt = sent_stream(health, now, slot)
                if step in ("begun", "done"):
                    health.answering(attempt, now + 0.01)
                if step == "done" and slot != silent:
                    health.ended(attempt, 200, "complete", now + 0.015)
                calls = 0
                while step == "look" and (not calls or health.look_at <= now):
                    before = sum(a.overdue or a.doubted_at > 0.0 for a in attempts_of(health))
                    health.look(now)
                    calls += 1
                    after = sum(a.overdue or a.doubted_at > 0.0 for a in attempts_of(health))
                    assert after - before <= most
                if step == "look":
                    assert (calls - 3) * most <= len(attempts_of(health))
                    seen += [state_of(each) for each in health.records.endpoints.values()]
        return seen

    assert run(looks) == run(10_000)


def attempts_of(health):
    return [a for endpoint in health.records.endpoints.values() for a in endpoint.attempts]


def state_of(endpoint):
    noticed = [(a.overdue, a.blamed, a.doubted_at) for a in endpoint.attempts]
    return endpoint.breaker.state, dict(endpoint.failures), noticed


@pytest.mark.parametrize("leave", ["ended", "dropped"])
def test_a_check_in_pieces_examines_no_request_that_has_left_meanwhile(leave):
    health, now = known(), 1.0
    silent = [sent_stream(health, now, 0) for _ in range(4)]
    for attempt in silent:
        health.answering(attempt, now)
    while now < 8.0:
        now += 0.25
        other = sent_stream(health, now, 1)
        health.answering(other, now + 0.01)
        health.ended(other, 200, "complete", now + 0.05)
    with mock.patch("laar.health.health._LOOKS", 1):
        health.look(now)
        left = [attempt for attempt in silent if not attempt.overdue]
        if leave == "dropped":
            health.drop(0)
        else:
            for attempt in left:
                health.gone(attempt, now)
        while health.look_at <= now:
            health.look(now)
    assert len(left) == 3
    assert not any(attempt.overdue for attempt in left)
    assert leave == "ended" or 0 not in health.records.outliers


def test_a_check_stops_after_so_many_requests_although_others_are_recent():
    health = known()
    for slot in (0, 1):
        for _ in range(50):
            sent_stream(health, 1.0, slot)
        sent_stream(health, 9.0, slot)
    with mock.patch("laar.health.health._LOOKS", 51):
        health.look(9.1)
    assert health.look_at == 9.1  # the other endpoint's turn comes at once


def test_a_large_fleet_that_is_silent_as_a_whole_is_checked_quickly():
    def silent(slots):
        """Return a fleet with eight silent requests at each endpoint."""
        health = Health(HealthSettings(), rng=random.Random(1))
        for turn in range(5):
            for slot in range(slots):
                attempt = sent_stream(health, turn, slot)
                health.answering(attempt, turn + 0.05)
                health.ended(attempt, 200, "complete", turn + 0.1)
        for slot in range(slots):
            for _ in range(8):
                health.sent(slot, "m", stream=True, predicted_s=0.05, tokens=10.0, now=6.0)
        return health

    large, small = ([silent(slots) for _ in range(3)] for slots in (400, 50))
    looks = times_as_long(lambda: large.pop().look(10.0), lambda: small.pop().look(10.0), tries=3)
    assert looks < 24
