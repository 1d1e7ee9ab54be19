"""The effect of an outcome on the health of its endpoint: a good one, a failure, or neither.

A failure of a kind that may be a client's (a wrong key, a cut answer) is compared with the
endpoint's siblings before it counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import FULL_S, Breaker, State
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, USELESS, Kind, Reply
from laar.health.pace import ratio
from laar.health.questions import RETRIED, Questions, release
from laar.health.records import Records
from laar.health.siblings import alone

_TRUST_AFTER = 4
"""Answers read and found good until unread ones count again, after an error inside an answer."""
_LIGHTEST = 0.1
_EVENTS_IN_ROW = 2
"""Errors in a 200 that open, where siblings send none: Envoy repeats nothing, so a third would be
another client's."""
_TIMES_EVERY_S = 0.01
"""An endpoint's answers are timed so often at the most; that costs more than all the rest here."""
_UNHEARD_S = 0.5
_REFUSALS_S = 30.0
"""An attempt that was refused for load is reported when its request was answered elsewhere."""
_MOST_REFUSALS = 1000.0
_IN_BODY = USELESS | {Kind.HANG, Kind.EVENT, Kind.CUT}
"""Kinds that come after a head that looks well."""


class Outcomes:
    """Writes outcomes into the endpoints' records.

    Args:
        records: the endpoints' records.
        questions: asks suspects a question.
        rng: spreads trials.
        say: called with each message for other pickers: the slot and the fields of a `Word`.
    """

    def __init__(
        self,
        records: Records,
        questions: Questions,
        rng: random.Random,
        say: Callable[[int, str, Kind, float], None],
    ) -> None:
        self._records = records
        self._questions = questions
        self._rng = rng
        self._say = say

    def accepted(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """Records that the endpoint accepted the request."""
        if attempt.timed and attempt.group[1]:  # a whole answer comes with its head
            self._records.times(attempt).saw(Stage.ACCEPTED, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ACCEPTED, now)
        endpoint.denied.add(now, happened=False)
        breaker = endpoint.breaker
        # Silence and errors come after a head that looks well: then the body decides.
        unproven = breaker.doubtful or (
            breaker.is_out and (attempt.read or breaker.kind in _IN_BODY)
        )
        if not unproven:
            self.good(endpoint, attempt, now)

    def good(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """Records a good answer."""
        if attempt.good and not endpoint.breaker.is_out:
            return
        attempt.good = True
        endpoint.proved_at = now
        breaker = endpoint.breaker
        if endpoint.bail:
            release(endpoint, self._records.settings, now)
        is_news = attempt.slot in self._records.troubled
        is_back = breaker.good(attempt, self._records.settings, now)
        if is_back:
            self._records.version += 1
        if is_news:
            self._say(attempt.slot, "back" if is_back else "good", breaker.kind, 1.0)

    def whole(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """Records a complete answer."""
        group = self._records.times(attempt)
        seconds = now - attempt.at - attempt.rtt_s
        is_brief = seconds < group.brief_s and not attempt.read
        endpoint.quick = endpoint.quick + 1 if is_brief else 0
        is_quick = is_brief and (endpoint.quick > 1 or seconds < group.quick_s)
        if is_quick:  # it may be an error that was not seen: the next ones are looked at
            endpoint.unseen = max(endpoint.unseen, 2)
        if now - endpoint.progress_at[Stage.OVER] < _TIMES_EVERY_S and attempt.good:
            return  # there is more to learn from than a mean needs
        endpoint.reached(attempt, Stage.OVER, now)
        if attempt.read:
            endpoint.cut.add(now, happened=False)
        if is_quick:
            return  # its time is no sample of answers either
        if not attempt.read or endpoint.breaker.is_out:
            self.good(endpoint, attempt, now)
        group.sizes.append(attempt.tokens)
        if attempt.timed:
            value = ratio(seconds, attempt.predicted_s)
            if group.total_s.n >= 3:
                endpoint.speed.add(value - group.mean, now)
                self._records.paced.add(endpoint.model)
            group.ended(seconds, value)

    def judged(
        self, endpoint: Endpoint, attempt: Attempt, verdict: Kind | str, reply: Reply, now: float
    ) -> None:
        """Records what an answer was worth, which the head or the body has shown."""
        if attempt.judged:
            return
        if verdict is GOOD:
            if endpoint.unseen:
                endpoint.unseen -= 1
            if endpoint.breaker.doubtful:
                endpoint.breaker.doubtful -= 1
            endpoint.useless.add(now, happened=False)
            if attempt.stage is Stage.SENT:
                self.accepted(endpoint, attempt, now)
            breaker = endpoint.breaker
            if not (breaker.is_out and breaker.kind is Kind.HANG and attempt.group[1]):
                self.good(endpoint, attempt, now)  # else its end decides: it may halt again
        elif verdict is Kind.CUT:
            self.cut(endpoint, attempt, now)
        else:
            self._useless(endpoint, attempt, Kind(verdict), reply.detail or reply.model, now)

    def cut(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """Records an answer that was cut: the client left, or the engine stopped."""
        attempt.judged = True
        endpoint.cut.add(now, happened=True)
        self._records.contest(endpoint, now)
        if alone(endpoint.cut, (e.cut for e in self._records.others(endpoint)), now):
            self.failed(endpoint, attempt, Kind.CUT, now)

    def _useless(
        self, endpoint: Endpoint, attempt: Attempt, kind: Kind, flaw: str, now: float
    ) -> None:
        """Records an answer of no use, which counts where siblings' answers are useful.

        A question settles most cases: a client may have asked for silence, but the picker did not.
        """
        breaker, records = endpoint.breaker, self._records
        on_trial = attempt is breaker.trial
        attempt.judged = attempt.useless = True
        if attempt.stage is Stage.SENT:
            endpoint.reached(attempt, Stage.ACCEPTED, now)
        if attempt.good:
            attempt.good = False
            breaker.retract_good(now)
        endpoint.flaw = flaw
        endpoint.useless.add(now, happened=True)
        records.contest(endpoint, now)
        self._distrust(breaker)
        # Those that are out already for their own failures excuse nobody.
        tried = (State.OPEN, State.TRIAL)
        others = [e.useless for e in records.others(endpoint) if e.breaker.state not in tried]
        apart = alone(endpoint.useless, others, now)
        is_alone = all(share.is_quiet(now) for share in others)
        if apart or (on_trial and others and is_alone):
            self.failed(endpoint, attempt, kind, now)
            return
        if apart is None:  # siblings are still at it: they have to be heard first
            breaker.pause(now + _UNHEARD_S)
        if is_alone:
            self._questions.suspect(endpoint, kind, 1.0, now)
        records.trouble(attempt.slot)

    def failed(
        self,
        endpoint: Endpoint,
        attempt: Attempt | None,
        kind: Kind,
        now: float,
        reply: Reply | None = None,
        *,
        excused: bool = False,
    ) -> None:
        """Records a failure by the endpoint's own fault; by its request's where it is `excused`.

        An endpoint that has not answered others recently is excused as soon as it does.
        """
        settings, breaker = self._records.settings, endpoint.breaker
        slot = self._slot(endpoint, attempt)
        if attempt is not None:
            attempt.judged = True
            if attempt.good:
                breaker.retract_good(now)
            if kind is not Kind.HANG:
                endpoint.reached(attempt, Stage.ACCEPTED, now)
        weight = 1.0
        if kind is Kind.RETRIED:
            latest_full = max(breaker.full_until, breaker.limited_at)
            if endpoint.refusals >= 1.0 or latest_full > now - FULL_S:
                kind = Kind.FULL  # its page counts one, or it has just said so in a reply
            else:
                endpoint.retried.append(attempt)
            weight = RETRIED
        if excused and kind is not Kind.FULL:
            if endpoint.is_proved(now):
                self._excuse(endpoint, attempt, kind, now)
                self._records.trouble(slot)
                return
            endpoint.bail += weight
        if kind is Kind.FULL:
            self._full(endpoint, attempt, slot, reply, now)
            return
        if kind is Kind.DENIED:
            if not self._denied_alone(endpoint, attempt, slot, reply, now):
                return
            weight = max(1.0, float(endpoint.denied.row))  # those before it have not counted yet
        if kind in (Kind.ERROR, Kind.EVENT) and attempt is not None:
            weight = self._lightness(attempt)
        row = settings.consecutive_failures
        if kind in USELESS:
            weight = max(1.0, float(endpoint.useless.row))
        if kind is Kind.EVENT:
            self._distrust(breaker)
            weight *= 1.0 + endpoint.quick  # the quick ones before it were most likely the same
            endpoint.quick = 0
            if not any(other.breaker.doubtful for other in self._records.others(endpoint)):
                row = min(row, _EVENTS_IN_ROW)
        endpoint.failures[kind] += 1
        is_out = breaker.bad(attempt, kind, weight, settings, self._rng, now, row)
        if not is_out:
            self._questions.suspect(endpoint, kind, weight, now)
        self._records.trouble(slot)
        self._say(slot, "bad", kind, weight)
        if is_out:
            self._say(slot, "out", kind, breaker.trial_at - now)

    def _excuse(self, endpoint: Endpoint, attempt: Attempt | None, kind: Kind, now: float) -> None:
        """Counts a failure that is the request's, and has the endpoint asked if that is so."""
        endpoint.failures[Kind.REQUEST] += 1
        if attempt is not None:
            endpoint.breaker.end_trial(attempt, self._rng, now)
        self._questions.suspect(endpoint, kind, 1.0, now, excused=True)

    @staticmethod
    def _distrust(breaker: Breaker) -> None:
        if breaker.doubtful:
            breaker.doubtful = _TRUST_AFTER
        else:
            breaker.distrust(_TRUST_AFTER)

    def _full(
        self,
        endpoint: Endpoint,
        attempt: Attempt | None,
        slot: int,
        reply: Reply | None,
        now: float,
    ) -> None:
        """Records that the endpoint is full, which is no fault."""
        breaker = endpoint.breaker
        endpoint.failures[Kind.FULL] += 1
        endpoint.refusals -= 1.0
        endpoint.refused_at = now
        self._records.trouble(slot)
        retry_after_s = reply.retry_after_s if reply else None
        if retry_after_s is None and attempt is None:  # by Envoy's own choice: nothing to learn
            return
        if retry_after_s is None and attempt is not None and attempt.ahead:
            breaker.overloaded(attempt, now)
            return
        breaker.full(attempt, retry_after_s, now)
        self._say(slot, "full", Kind.FULL, breaker.full_until - now)

    def refused(self, slot: int, endpoint: Endpoint, count: float, now: float) -> None:
        """Takes how many requests an endpoint's page says that it has refused for load.

        Envoy does not report why an attempt failed. So as many of those that count as failures
        were none, and as many of those that are still to be reported.
        """
        if now - endpoint.refused_at > _REFUSALS_S:
            endpoint.refusals = 0.0
        endpoint.refusals = min(_MOST_REFUSALS, endpoint.refusals + count)
        endpoint.refused_at = now
        while endpoint.retried and endpoint.refusals >= 1.0:
            attempt = endpoint.retried.pop()
            endpoint.refusals -= 1.0
            endpoint.breaker.excuse(RETRIED, self._records.settings, now)
            if attempt is not None and attempt.ahead:
                endpoint.breaker.overloaded(attempt, now)
        self._records.trouble(slot)

    def _denied_alone(
        self,
        endpoint: Endpoint,
        attempt: Attempt | None,
        slot: int,
        reply: Reply | None,
        now: float,
    ) -> bool:
        """Whether only this endpoint denies, not its siblings; else the client's key may be bad."""
        breaker = endpoint.breaker
        endpoint.denied.add(now, happened=True)
        if reply is not None and reply.status != 404 and endpoint.admits_still(now):
            return False  # it asks for no key, so this one was wrong
        apart = alone(endpoint.denied, (e.denied for e in self._records.others(endpoint)), now)
        if apart:
            return True
        if apart is None:  # siblings are still at it: they have to be heard first
            breaker.pause(now + _UNHEARD_S)
            self._records.trouble(slot)
        if attempt is not None and attempt is breaker.trial and breaker.kind is Kind.DENIED:
            # Siblings deny as well: the fault is the client's.
            breaker.good(attempt, self._records.settings, now)
            self._records.version += 1
        else:
            self._questions.suspect(endpoint, Kind.DENIED, 1.0, now)
            self._records.trouble(slot)
        return False

    def _lightness(self, attempt: Attempt) -> float:
        """The weight of an error: small where only the heaviest requests meet one.

        1 up to the median size of recent good requests, falling to a tenth beyond the largest.
        """
        return max(
            _LIGHTEST, min(1.0, 2.0 * self._records.times(attempt).lightness(attempt.tokens))
        )

    def _slot(self, endpoint: Endpoint, attempt: Attempt | None) -> int:
        if attempt is not None:
            return attempt.slot
        return next(slot for slot, known in self._records.endpoints.items() if known is endpoint)
