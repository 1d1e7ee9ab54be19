"""The circuit breaker of one endpoint, and P(answers).

    closed --failures--> open --back-off over, one trial--> half-open --answered--> starting
      ^  |                 ^                                    |                   |    |
      |  +--> suspect -----+-------------- failed --------------+------ failed -----+    |
      |          |                                                                       |
      +----------+------------------------- slow start over -----------------------------+

A first failure makes an endpoint a suspect, if the picker can probe it: it gets no requests until
it answers the probe. Waiting for a second and a third failure would cost clients those requests,
and the failures might never come: the price after the first may drive all traffic away.

P(answers) is the share of good outcomes among the last dozen, which decay with a half-life, plus a
small prior of good outcomes. The breaker opens on consecutive failures, or on a high share of
failures. Each opening soon after the previous one doubles the time to the next trial: an endpoint
that fails every second request passes every second trial, but must not return each time.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from annotated_types import Ge, Le

from laar.declaring import Applies
from laar.health.kinds import Kind
from laar.health.recent import WINDOW, Recent

if TYPE_CHECKING:
    from laar.health.endpoint import Attempt

FAILING_SHARE = 0.35
"""Share of failures among an endpoint's last dozen outcomes that excludes it. At about a third, an
endpoint that fails every second request is detected after four to seven failures; an endpoint that
fails one request in ten stays, at a higher price."""

FIRST_TRIAL_S = 1.0
"""Seconds between excluding an endpoint and its first trial request; doubled each time it fails
again, and five times as long after a hang. A short failure should cost only a second."""

SLOW_START_S = 10.0
"""Seconds over which the price of a new or returning endpoint falls from five times its normal
level to normal: its caches are cold, and a new failure should cost little."""

OVERDUE_S = 2.0
"""Seconds of silence that are never treated as a hang. A longer silence is a hang if it exceeds the
model's typical time by three standard deviations while other endpoints with that model answer."""

FULL_S = 1.0
"""Pause in seconds for an endpoint that reports that it is full (429, a full queue) without
retry-after; doubled while it stays full."""

LONGEST_FULL_S = 30.0
"""Longest pause in seconds, despite retry-after: engines drain their queues in seconds, and a
wrong header must not exclude an endpoint."""

_LEAST = 6.0  # outcomes needed to compute a share
_CONVALESCENT = 4
"""Number of answers after a trial within which one failure excludes the endpoint again."""
_FAITH = 2.0  # weight of the prior, in good outcomes
_JITTER = 0.2  # maximum share by which a wait is lengthened
_HANG_FACTOR = 5.0
"""Factor on the delay of the first trial after a hang: that trial may cost a client its full
timeout; after a refusal, it costs only a round trip."""
_FIRST_SHARE = 0.2  # factor on P(answers) when a slow start begins
_AGAIN_S = 0.5
"""Seconds until a trial without a verdict (the client is gone or at fault) is repeated."""
_PROBE_FIRST_S = 1.0
"""Seconds that a due trial waits for a probe."""
_PROBES_BELIEVED = 6
"""Failed probes after which a request is tried anyway: the probe itself may be the problem."""
_SUSPECT_S = 1.0
"""Seconds until a suspect returns if its probe is unanswered: it may be busy rather than down.
Twice as many if the probe was denied, and a sibling's is unanswered."""
_EXCUSED = (Kind.RETRIED, Kind.STATUS, Kind.ERROR)
_LIMIT_DOUBLES_S = 5.0
_LIMITED_S = 20.0
"""Seconds after which a limit is dropped; by then it has grown by a factor of sixteen."""
OTHERS_TRIAL_S = 5.0
"""Longest wait in seconds for another picker's trial: that picker may be gone."""
_NEGLIGIBLE = 0.02
"""Weight below which failures have no visible effect on the price."""


class State(StrEnum):
    """States of a breaker."""

    CLOSED = "closed"
    SUSPECT = "suspect"
    OPEN = "open"
    HALF_OPEN = "half-open"
    STARTING = "starting"


class Word(NamedTuple):
    """A message about an endpoint, from one picker to the others.

    `what` is ``good``, ``bad`` (`amount` is its weight), ``out`` or ``trial`` (`amount` is the
    seconds until the next trial), ``full`` (the seconds of its pause) or ``back``.
    """

    what: str
    kind: Kind
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Rules by which an endpoint is excluded and returns."""

    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = True
    """Whether failures are taken into account. Otherwise, an endpoint that fails fast looks idle
    and attracts traffic."""
    consecutive_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Consecutive failures that exclude an endpoint. One may be chance, but not three in a row."""
    probe: bool = True
    """Whether the picker sends a failing endpoint a chat request of a few tokens before it risks a
    client's request. An endpoint that requires a client's key answers 401, which proves nothing."""
    longest_trial_s: Annotated[float, Ge(1), Le(3600)] = 30.0
    """Longest time between two trials, in seconds, plus up to a fifth of jitter. With 30 and the
    slow start after it, a recovered endpoint is back within a minute."""


@dataclass(slots=True)
class Rules:
    """Settings shared by all breakers, and the random numbers that spread trials."""

    settings: HealthSettings
    rng: random.Random

    def jittered(self, seconds: float) -> float:
        """Lengthen a wait by a random amount."""
        return seconds * (1.0 + _JITTER * self.rng.random())


@dataclass(slots=True, eq=False)
class Breaker:
    """One endpoint's outcomes and state."""

    rules: Rules
    state: State = State.CLOSED
    """See the module's docstring."""
    kind: Kind = Kind.STATUS
    """Kind of failure for which it was last opened or suspected."""
    opened_at: float = 0.0
    openings: int = 0
    trial: Attempt | None = None
    """The attempt that serves as the current trial."""
    trial_at: float = 0.0
    """When the next trial is due, or a suspect with an unanswered probe returns."""
    trials: int = 0
    full_until: float = 0.0
    """The endpoint is full, and gets no requests before this time."""
    doubted_until: float = 0.0
    """Until this time others come first: its failure may be the client's fault."""
    limited_at: float = -math.inf
    """When it last refused a request because of the requests ahead of it."""
    is_suspected: bool = False
    """A probe decides whether the endpoint is failing."""
    suspected_at: float = -math.inf
    """When that probe was last requested, or is due."""
    probing: bool = False
    """A probe is in flight."""
    refused: bool = False
    """The probe was denied access, which is a failure once a sibling has accepted it."""
    failed_again: bool = False
    """The endpoint was already excluded when its breaker last opened."""
    is_hopeless: bool = False
    """All its recent outcomes were failures, several in a row."""
    recent: Recent = field(default_factory=Recent)
    _limit: float = math.inf
    _probed: bool = False  # the probe succeeded
    _failed_probes: float = 0.0
    _streak: float = 0.0  # consecutive failures
    _backoff_s: float = 0.0
    _closed_at: float = -math.inf
    _answered: int = 0  # good answers since `_closed_at`
    _full_s: float = 0.0
    _trust_s: float = 0.0
    _trusted_until: float = -math.inf

    # -- reading -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it has failed and not yet passed a trial."""
        return self.state is State.OPEN or self.state is State.HALF_OPEN

    @property
    def may_answer(self) -> bool:
        """Whether it may answer again: it is not excluded, or is being tried, or its probe was."""
        return not self.is_open or self.state is State.HALF_OPEN or self._probed

    @property
    def is_out(self) -> bool:
        """Whether it gets only trials."""
        return self.state in (State.OPEN, State.HALF_OPEN, State.SUSPECT)

    def answers(self, now: float) -> float:
        """Return P(answers), in 0..1; lower during a slow start."""
        recent = self.recent
        recent.fade(now)
        probability = (recent.good + _FAITH) / (recent.good + recent.bad + _FAITH)
        if self.state is State.STARTING:
            done = (now - self._closed_at) / SLOW_START_S
            probability *= min(1.0, _FIRST_SHARE + (1.0 - _FIRST_SHARE) * max(0.0, done))
        return probability

    @property
    def is_new(self) -> bool:
        """Whether the endpoint starts slowly only because it is new."""
        return self.state is State.STARTING and self.recent.bad == 0.0

    def settle(self, now: float) -> None:
        """Advance the state to `now`."""
        if self.state is State.STARTING and now - self._closed_at >= SLOW_START_S:
            self.state = State.CLOSED
        if self.state is State.SUSPECT and now >= self.trial_at + _SUSPECT_S * self.refused:
            self._acquit(now)
        if self.refused and now - self.suspected_at > 2.0 * _SUSPECT_S:  # its sibling was removed
            self.is_suspected = self.refused = False

    def stands_out(self, now: float) -> bool:
        """Return whether anything distinguishes it from an endpoint that never failed."""
        self.recent.fade(now)
        return (
            self.state is not State.CLOSED
            or max(self.full_until, self.doubted_until) > now
            or self.limit(now) < math.inf
            or self.is_suspected
            or self.recent.bad > _NEGLIGIBLE
        )

    def limit(self, now: float) -> float:
        """Return the maximum number of requests in flight; infinite if it refused none recently.

        The limit keeps doubling, since refusals are cheap: Envoy retries at another endpoint.
        """
        since_s = now - self.limited_at
        if since_s > _LIMITED_S:
            return math.inf
        return float(int(max(1.0, self._limit) * math.exp2(since_s / _LIMIT_DOUBLES_S)))

    def trial_due(self, now: float) -> bool:
        """Return whether a probe or request should test whether it has recovered."""
        return (
            self.state is State.OPEN
            and not self.probing
            and now >= self.trial_at
            and now >= self.full_until
        )

    def request_due(self, now: float) -> bool:
        """Return whether its trial should be a client's request, as no probe can come first."""
        waited = now - self.trial_at > _PROBE_FIRST_S
        return self.trial_due(now) and (waited or not self.probe_due(now))

    def probe_due(self, now: float) -> bool:
        """Return whether to probe it before risking a request."""
        if self.is_suspected:
            return not self.probing and not self.refused and now >= self.suspected_at
        return (
            self.rules.settings.probe
            and not self._probed
            and self.trial_due(now)
            and self._failed_probes < _PROBES_BELIEVED
        )

    # -- outcomes ------------------------------------------------------------------------------

    def record_success(self, attempt: Attempt, now: float) -> bool:
        """Record a good answer; return whether the endpoint gets traffic again."""
        recent = self.recent
        self._streak = 0.0
        if self.state is State.CLOSED and recent.bad == 0.0:
            # The usual case. `fade` runs only at the first failure, which thus weighs more.
            recent.good = min(recent.good + 1.0, WINDOW)
            return False
        recent.add(now, good=1.0)
        self._answered += 1
        self.is_hopeless = False
        # An answer to a request sent before the failure proves nothing, unless the failure was
        # silence.
        stale = attempt is not self.trial and attempt.at <= self.opened_at
        if not self.is_out or (stale and self.kind is not Kind.HANG):
            return False
        if self.state is State.SUSPECT:
            self._acquit(now)
            return True
        self._close(now)
        if stale:
            self.state = State.CLOSED  # it was slow, not down: its cache is still warm
        return True

    def record_failure(
        self, attempt: Attempt | None, kind: Kind, weight: float, now: float, row: int | None = None
    ) -> bool:
        """Record a failure with a `weight`; return whether it opened the breaker.

        `row` is the number of consecutive failures that open it; None means `consecutive_failures`.
        """
        recent, usual_row = self.recent, self.rules.settings.consecutive_failures - 1e-9
        recent.add(now, bad=weight)
        self._streak += weight
        if self._streak >= usual_row:
            self.is_hopeless = True
        on_trial = attempt is not None and attempt is self.trial
        if self.is_open and not on_trial:
            return False
        relapse = self.state is State.STARTING and weight >= 0.5 and self._answered < _CONVALESCENT
        if not (
            on_trial
            or relapse
            or self._streak >= (row - 1e-9 if row else usual_row)
            or (recent.total >= _LEAST and recent.bad >= FAILING_SHARE * recent.total)
        ):
            return False
        self.open(kind, now)
        return True

    def forgive(self, weight: float, now: float) -> None:
        """Retract the weight of an outcome wrongly counted as a failure."""
        self.recent.add(now, bad=-weight)
        self._streak = max(0.0, self._streak - weight)

    def excuse(self, weight: float, now: float) -> None:
        """Retract failures due to load or requests; close the breaker if there were no others."""
        self.forgive(weight, now)
        if (
            self.kind in _EXCUSED
            and self.state in (State.OPEN, State.SUSPECT, State.STARTING)
            and self._streak < self.rules.settings.consecutive_failures - 1e-9
            and self.recent.bad <= _NEGLIGIBLE
        ):
            self.state = State.CLOSED
            self.is_suspected = self.is_hopeless = False

    def record_full(self, attempt: Attempt | None, retry_after_s: float | None, now: float) -> None:
        """Record that the endpoint is full. It answered, so a trial has succeeded."""
        pause_s = FULL_S if retry_after_s is None else retry_after_s
        if now - self.full_until < self._full_s:  # it is full again, right after the pause
            pause_s = max(pause_s, 2.0 * self._full_s)
        self._full_s = min(LONGEST_FULL_S, max(FULL_S, pause_s))
        self.pause(now + min(LONGEST_FULL_S, max(0.0, pause_s)))
        if attempt is not None and attempt is self.trial:
            self._close(now)

    def record_overload(self, attempt: Attempt, now: float) -> None:
        """Record that the endpoint refused a request because of the requests ahead of it.

        That is neither a failure nor a reason to pause: the endpoint serves what it accepted.
        """
        if attempt.ahead < self.limit(now):
            self._limit, self.limited_at = float(attempt.ahead), now
        if attempt is self.trial:
            self._close(now)

    def doubt(self, until: float) -> None:
        """Prefer other endpoints until this time, but keep this one as a last fallback."""
        self.doubted_until = max(self.doubted_until, until)

    def pause(self, until: float) -> None:
        """Send the endpoint no requests before `until`, unless all others are excluded too."""
        self.full_until = max(self.full_until, until)

    # -- states --------------------------------------------------------------------------------

    def start_slowly(self, now: float) -> None:
        """Begin the slow start of an endpoint that joined others."""
        self.state = State.STARTING
        self._answered = _CONVALESCENT
        self._closed_at = now

    def open(self, kind: Kind, now: float) -> None:
        """Exclude the endpoint until a trial."""
        first = FIRST_TRIAL_S * (_HANG_FACTOR if kind is Kind.HANG else 1.0)
        quiet_s = now - self._closed_at
        back_for_good = (
            self.state in (State.CLOSED, State.SUSPECT)
            and quiet_s > 2.0 * self._backoff_s + SLOW_START_S
        )
        doubled = 0.0 if back_for_good else 2.0 * self._backoff_s
        self._backoff_s = min(self.rules.settings.longest_trial_s, max(first, doubled))
        self.failed_again = self.is_open
        self.state = State.OPEN
        self.kind = kind
        self.trial = None
        self.is_suspected = self._probed = self.refused = False
        self.opened_at = now
        self.trial_at = now + self.rules.jittered(self._backoff_s)
        self.openings += 1

    def begin_trial(self, attempt: Attempt) -> None:
        """Make this attempt the endpoint's trial."""
        self.state = State.HALF_OPEN
        self.trial = attempt
        self.trials += 1
        self._probed = False
        self._failed_probes = 0.0

    def end_trial(self, attempt: Attempt, now: float) -> None:
        """End a trial without a verdict."""
        if attempt is self.trial:
            self.state = State.OPEN
            self.trial = None
            self.trial_at = now + self.rules.jittered(_AGAIN_S)

    def _close(self, now: float) -> None:
        self.state = State.STARTING
        self.trial = None
        self._closed_at = now
        self._answered = 0
        self._streak = 0.0
        self.recent.good = _FAITH
        self.recent.bad = min(self.recent.bad, 1.0)

    def suspect(self, kind: Kind, now: float, *, excused: bool = False) -> bool:
        """Request a probe unless one is pending; return whether it is due now.

        No requests are sent until the probe is answered, unless the endpoint is trusted or the
        failure is `excused`, which means that the request was at fault.
        """
        if self.is_out or self.is_suspected:
            return False
        if now - self.suspected_at < FIRST_TRIAL_S:
            if kind is not Kind.DENIED:  # probe soon: its price may keep all traffic away
                self.is_suspected, self.kind = True, kind
                self.suspected_at += FIRST_TRIAL_S
            return False
        self.is_suspected = True
        self.suspected_at = now
        self.kind = kind
        self.refused = False
        if not excused and now >= self._trusted_until:
            self.state = State.SUSPECT
            self.opened_at = now
            wait_s = _SUSPECT_S
            if kind is Kind.HANG:  # by then the answer is overdue or has continued
                wait_s = min(OVERDUE_S, self.rules.settings.longest_trial_s)
            self.trial_at = now + wait_s
        return True

    def _acquit(self, now: float) -> None:
        """Restore the endpoint, and trust it for a while, longer each time."""
        longest_s = self.rules.settings.longest_trial_s
        self.state = State.STARTING if now - self._closed_at < SLOW_START_S else State.CLOSED
        if now - self._trusted_until > longest_s:
            self._trust_s = 0.0
        self._trust_s = min(longest_s, max(FIRST_TRIAL_S, 2.0 * self._trust_s))
        self._trusted_until = now + self._trust_s

    def record_probe(self, kind: Kind | None, weight: float, now: float) -> None:
        """Record the result of a probe: the kind of its failure, or None if it succeeded.

        Once the weights of failed probes reach `_PROBES_BELIEVED`, a client's request is tried.
        """
        self.probing = self.refused = False
        suspected, self.is_suspected = self.is_suspected, False
        if suspected and not self.is_open:
            if kind is not None:
                self.open(kind, now)
            elif self.state is State.SUSPECT:
                self._acquit(now)
        elif self.state is State.OPEN:
            self._probed = kind is None
            if kind is not None:
                self.open(kind, now)
                self.openings -= 1
                self._failed_probes += weight

    # -- other pickers -------------------------------------------------------------------------

    def hear(self, word: Word, now: float) -> None:
        """Apply another picker's message; a failure counts as if this picker had seen it."""
        match word.what:
            case "good":
                self.recent.add(now, good=1.0)
                if not self.is_out:
                    self._streak = 0.0
                    self._answered += 1
                    self.is_hopeless = False
            case "bad":
                self.record_failure(None, word.kind, word.amount, now)
            case "out":
                if not self.is_open:
                    self.open(word.kind, now)
                if self.state is State.OPEN:  # try a little later than that picker
                    longest_s = self.rules.settings.longest_trial_s
                    self.trial_at = now + min(longest_s, self.rules.jittered(word.amount))
            case "back":
                if self.state is State.OPEN:
                    self._close(now)
            case "full":
                self.pause(now + min(LONGEST_FULL_S, word.amount))
            case "trial":  # that picker has just begun a trial
                if self.state is State.OPEN:
                    self.trial_at = max(self.trial_at, now + min(OTHERS_TRIAL_S, word.amount))
