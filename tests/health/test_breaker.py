"""The breaker keeps its guarantees in any order of events."""

import random

from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laar.health import Attempt, HealthSettings, Kind
from laar.health.breaker import LONGEST_FULL_S, OVERDUE_S, Breaker, Rules, State
from support.exploring import examples

SETTINGS = HealthSettings()
KINDS = st.sampled_from([Kind.STATUS, Kind.ERROR, Kind.EVENT, Kind.HANG, Kind.RETRIED])


def request(now):
    """An attempt of a short request."""
    return Attempt(None, False, now, 0.1, 10.0, 0.0)


class Promises(RuleBasedStateMachine):
    """Calls a breaker in any order with outcomes, trials, probes and pauses."""

    def __init__(self):
        super().__init__()
        self.breaker = Breaker(Rules(SETTINGS, random.Random(3)))
        self.now = 100.0
        self.failed_in_a_row = 0.0
        self.opened = []
        self.delayed = False  # a trial without a verdict postponed the next one

    def attempt(self):
        return request(self.now)

    @rule(seconds=st.floats(0.0, 40.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.breaker.settle(self.now)

    @rule()
    def good(self):
        self.breaker.record_success(self.attempt(), self.now)
        self.failed_in_a_row = 0.0

    @rule(kind=KINDS, weight=st.sampled_from([0.1, 0.5, 1.0]))
    def bad(self, kind, weight):
        was_open = self.breaker.is_open
        out_now = self.breaker.record_failure(self.attempt(), kind, weight, self.now)
        self.failed_in_a_row += weight
        assert out_now == (self.breaker.state is State.OPEN and not was_open)
        if out_now:
            self.opened.append(self.now)

    @rule(retry_after_s=st.none() | st.floats(0.0, 1e9))
    def full(self, retry_after_s):
        was = self.breaker.state
        before = self.breaker.openings
        self.breaker.record_full(self.attempt(), retry_after_s, self.now)
        assert self.breaker.state is was
        assert self.breaker.openings == before
        assert self.breaker.full_until <= self.now + LONGEST_FULL_S + 1e-6

    @precondition(lambda self: self.breaker.trial_due(self.now))
    @rule(ends=st.sampled_from(["good", "bad", "nothing", "full"]))
    def trial(self, ends):
        assert self.now >= self.breaker.trial_at
        attempt = self.attempt()
        self.breaker.begin_trial(attempt)
        assert not self.breaker.trial_due(self.now)  # at most one trial at a time
        backoff = self.breaker.trial_at - self.breaker.opened_at
        if ends == "good":
            self.breaker.record_success(attempt, self.now)
            assert self.breaker.state is State.STARTING
            assert self.breaker.answers(self.now) < 0.5
            self.failed_in_a_row = 0.0
            self.delayed = False
        elif ends == "bad":
            self.breaker.record_failure(attempt, Kind.STATUS, 1.0, self.now)
            again = self.breaker.trial_at - self.now
            assert self.breaker.state is State.OPEN
            assert again <= SETTINGS.longest_trial_s * 1.2 + 1e-6
            assert self.delayed or again >= min(SETTINGS.longest_trial_s, backoff) - 1e-6
            self.delayed = False
        elif ends == "full":
            self.breaker.record_full(attempt, None, self.now)
            assert not self.breaker.is_out
        else:
            self.breaker.end_trial(attempt, self.now)
            assert self.breaker.state is State.OPEN
            assert self.breaker.trial_at <= self.now + 1.0
            self.delayed = True

    @precondition(
        lambda self: self.breaker.state is State.OPEN and self.breaker.probe_due(self.now)
    )
    @rule(failed=st.none() | KINDS)
    def probe(self, failed):
        self.breaker.probing = True
        assert not self.breaker.trial_due(self.now)
        openings = self.breaker.openings
        self.breaker.record_probe(failed, 1, self.now)
        assert self.breaker.openings == openings
        assert self.breaker.is_out
        assert (failed is None) == self.breaker.trial_due(self.now)

    @rule(kind=KINDS)
    def suspect(self, kind):
        was, openings = self.breaker.state, self.breaker.openings
        began = self.breaker.suspect(kind, self.now)
        assert not began or was in (State.CLOSED, State.STARTING)
        assert self.breaker.is_suspected or not began
        assert self.breaker.state in (was, State.SUSPECT)
        assert self.breaker.openings == openings
        assert not self.breaker.suspect(kind, self.now)

    @precondition(lambda self: self.breaker.state is State.SUSPECT)
    @rule(failed=st.none() | KINDS)
    def question(self, failed):
        openings = self.breaker.openings
        self.breaker.record_probe(failed, 1.0, self.now)
        if failed is None:
            # Without a slow start, unless it is in one.
            assert self.breaker.state in (State.CLOSED, State.STARTING)
            self.breaker.suspect(Kind.STATUS, self.now + 0.5)
            assert not self.breaker.is_out  # the answered probe counts for a while
        else:
            assert self.breaker.state is State.OPEN
        assert self.breaker.openings == openings + (failed is not None)

    @invariant()
    def suspicion_passes(self):
        if self.breaker.state is State.SUSPECT:
            hangs = self.breaker.kind is Kind.HANG
            most_s = OVERDUE_S if hangs else 1.0
            assert self.breaker.trial_at <= self.now + most_s + 1e-6

    @invariant()
    def price_is_a_probability(self):
        assert 0.0 < self.breaker.answers(self.now) <= 1.0

    @invariant()
    def three_failures_in_a_row_exclude(self):
        if self.failed_in_a_row >= SETTINGS.consecutive_failures and not self.breaker.is_out:
            # Only a trial that met a full engine may close it again.
            assert self.breaker.full_until > 0.0

    @invariant()
    def an_open_breaker_gets_a_trial_in_time(self):
        if self.breaker.state is State.OPEN:
            assert self.breaker.trial_at <= self.now + SETTINGS.longest_trial_s * 1.2 + 1e-6


Promises.TestCase.settings = budget(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestPromises = Promises.TestCase


def test_an_endpoint_that_fails_one_request_in_ten_is_not_excluded():
    rng = random.Random(1)
    breaker, now = Breaker(Rules(SETTINGS, random.Random(1))), 0.0
    opened = sent = 0
    for _ in range(2000):
        now += 0.05
        attempt = request(now)
        if breaker.trial_due(now):
            breaker.begin_trial(attempt)
        elif breaker.is_out:
            continue
        sent += 1
        if rng.random() < 0.1:
            opened += breaker.record_failure(attempt, Kind.STATUS, 1.0, now)
        else:
            breaker.record_success(attempt, now)
    assert opened <= 12
    assert sent > 1500
    assert 0.6 < breaker.answers(now) < 1.0


def test_a_failure_is_forgotten_over_time():
    breaker = Breaker(Rules(SETTINGS, random.Random(1)))
    breaker.record_failure(None, Kind.STATUS, 1.0, 10.0)
    assert breaker.answers(10.0) < 0.7
    assert breaker.answers(400.0) > 0.99
    assert not breaker.stands_out(400.0)
