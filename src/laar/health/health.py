"""Health: from outcomes to P(answers), to a pace, and to who gets no traffic.

One object for a fleet. Everything is by endpoint slot and model name; time is an argument. While
nothing is wrong it costs a record for each request and nothing at all for a decision: only
endpoints that stand out are looked at (`_troubled`).

An endpoint is out while its breaker is open. Three bounds keep a mistake small: of those that still
answer now and then at most a share of the candidates is out, the least bad stay at their price;
when all would be out none is, so that clients see the engines' own errors; and whatever is out is
tried again, one request at a time.

The share does not hold for those that did nothing but fail. Kept in at however high a price, they
have nothing in flight, and as the sound ones fill up, they win: with four of five refusing at once
and one of the four kept in, 98 % of the requests failed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import State
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.pace import ratio
from laar.health.records import Records
from laar.health.settings import HealthSettings
from laar.health.siblings import alone
from laar.health.silence import compare, find_hang, silent_for_long
from laar.health.standing import Standing, standing_of

__all__ = ["Health"]

_LOOK_S = 0.25
_READ_EVERY_S = 2.0
"""A sound endpoint's answers are read at least that often."""
_TRUST_AFTER = 4
"""Answers read and found good before an endpoint that sent an error in one is believed unread."""
_LIGHTEST = 0.1
_RETRIED = 0.5
"""Weight of a failure that is only known by Envoy's having gone on: it may have been a 429."""
_PROBE_FIRST_S = 1.0
"""How long a trial that is due waits for somebody to ask a question first."""
_TIMES_EVERY_S = 0.01
"""An endpoint's answers are timed so often at the most; that costs more than all the rest here."""
_UNHEARD_S = 0.5


class Health:
    """Learns from attempts which endpoints answer.

    Args:
        settings: thresholds; may be changed.
        rng: spreads trials.
    """

    def __init__(self, settings: HealthSettings, *, rng: random.Random) -> None:
        self._records = Records(settings, rng)
        self._endpoints = self._records.endpoints
        self._rng = rng
        self.look_at = 0.0
        """When `look` has something to do."""
        self.reads = True
        """Whether answers may be read."""

    @property
    def version(self) -> int:
        """Changes when an endpoint's standing does, other than by time."""
        return self._records.version

    @property
    def settings(self) -> HealthSettings:
        """Thresholds."""
        return self._records.settings

    @settings.setter
    def settings(self, settings: HealthSettings) -> None:
        self._records.settings = settings
        self._records.version += 1

    # -- membership ----------------------------------------------------------------------------

    def know(self, slot: int, model: str, now: float) -> Endpoint:
        """The record of a slot; a new one starts slowly where others have been there for long."""
        return self._records.know(slot, model, now)

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        self._records.drop(slot)

    # -- a request's life ----------------------------------------------------------------------

    def sent(
        self,
        slot: int,
        model: str,
        *,
        stream: bool,
        predicted_s: float,
        tokens: float,
        now: float,
        rtt_s: float = 0.0,
        trial: bool = False,
        timed: bool = True,
    ) -> Attempt:
        """A request was decided for a slot."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None or endpoint.model != model:
            endpoint = self.know(slot, model, now)
        attempt = Attempt(slot, (model, stream), now, predicted_s, tokens, rtt_s, trial, timed)
        endpoint.attempts[attempt] = None
        if trial:
            endpoint.breaker.begin_trial(attempt)
            self._records.version += 1
        return attempt

    def wants_read(self, slot: int, now: float) -> bool:
        """Whether the next answer of a slot should be read."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None or not self.reads:
            return False
        breaker = endpoint.breaker
        if (
            endpoint.unseen > 0
            or now - endpoint.read_at >= _READ_EVERY_S
            or breaker.doubtful
            or breaker.state is not State.CLOSED
        ):
            endpoint.read_at = now
            return True
        return False

    def replied(self, attempt: Attempt, reply: Reply, now: float, *, read: bool = False) -> None:
        """The endpoint's first word: its status, or an error later; `read` if the body is seen."""
        endpoint = self._of(attempt)
        if endpoint is None or attempt.stage is Stage.OVER:
            return
        attempt.read = read
        if reply.status == 200 and not reply.event:  # as nearly always
            if attempt.stage is Stage.SENT:
                self._accepted(endpoint, attempt, now)
            return
        verdict = judge(reply)
        if verdict is GOOD:
            if attempt.stage is Stage.SENT:
                self._accepted(endpoint, attempt, now)
        elif verdict is None:
            if not reply.event:
                endpoint.denied.add(now, happened=False)
            if attempt.good and reply.event:
                endpoint.breaker.unsay(self._records.settings, now)
            endpoint.reached(attempt, Stage.ACCEPTED, now)
            endpoint.breaker.tells_nothing(attempt, self._rng, now)
            attempt.judged = True
        else:
            self._failed(endpoint, attempt, Kind(verdict), now, reply)

    def answering(self, attempt: Attempt, now: float) -> None:
        """The first byte of an answer was seen, and it is no error."""
        endpoint = self._of(attempt)
        if endpoint is None or attempt.stage >= Stage.ANSWERING or attempt.judged:
            return
        if attempt.timed:
            self._records.times(attempt).saw(Stage.ANSWERING, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ANSWERING, now)
        if endpoint.unseen:
            endpoint.unseen -= 1
        if endpoint.breaker.doubtful:
            endpoint.breaker.doubtful -= 1
        self._good(endpoint, attempt, now)

    def ended(self, attempt: Attempt, status: int | None, cause: str, now: float) -> None:
        """It is over, as a `Completion` says."""
        endpoint = self._of(attempt)
        if endpoint is None:
            return
        if not attempt.judged and attempt.stage is Stage.SENT and status is not None:
            self.replied(attempt, Reply(status=status), now)
        endpoint.attempts.pop(attempt, None)
        whole = cause == "complete" and status is not None and status < 300
        if attempt.stage is not Stage.OVER and not attempt.judged:
            if whole and attempt.overdue and attempt.stage is Stage.ACCEPTED and not attempt.read:
                pass  # an unread answer that was given up looks like one that came to its end
            elif whole:
                self._whole(endpoint, attempt, now)
            elif cause == "reset":
                self._cut(endpoint, attempt, now)
            elif not attempt.overdue and silent_for_long(self._records, endpoint, attempt, now):
                self._failed(endpoint, attempt, Kind.HANG, now)
        endpoint.breaker.tells_nothing(attempt, self._rng, now)
        attempt.stage = Stage.OVER

    def passed_over(self, slot: int, now: float, attempt: Attempt | None = None) -> None:
        """Envoy tried this endpoint in vain; `attempt` where the request was decided for it."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None:
            return
        self._failed(endpoint, attempt, Kind.RETRIED, now)
        if attempt is not None:
            endpoint.attempts.pop(attempt, None)
            attempt.stage = Stage.OVER

    def gone(self, attempt: Attempt, now: float) -> None:
        """It is served elsewhere: nothing more is heard of it here."""
        endpoint = self._of(attempt)
        if endpoint is not None:
            endpoint.attempts.pop(attempt, None)
            endpoint.breaker.tells_nothing(attempt, self._rng, now)
            attempt.stage = Stage.OVER

    def _of(self, attempt: Attempt) -> Endpoint | None:
        """Its endpoint, unless the slot has another by now."""
        endpoint = self._endpoints.get(attempt.slot)
        return endpoint if endpoint is not None and attempt in endpoint.attempts else None

    # -- what an outcome means -----------------------------------------------------------------

    def _accepted(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        if attempt.timed and attempt.group[1]:  # a whole answer comes with its head
            self._records.times(attempt).saw(Stage.ACCEPTED, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ACCEPTED, now)
        endpoint.denied.add(now, happened=False)
        breaker = endpoint.breaker
        # Silence and errors come after a head that looks well: then the body decides.
        unproven = breaker.doubtful or (
            breaker.is_out and (attempt.read or breaker.kind in (Kind.HANG, Kind.EVENT))
        )
        if not unproven:
            self._good(endpoint, attempt, now)

    def _good(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        if attempt.good and not endpoint.breaker.is_out:
            return
        attempt.good = True
        if endpoint.breaker.good(attempt, self._records.settings, now):
            self._records.version += 1

    def _whole(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """An answer ended as it should."""
        if attempt.read and attempt.stage is Stage.ACCEPTED:  # not a byte came
            self._failed(endpoint, attempt, Kind.EVENT, now)
            return
        group = self._records.times(attempt)
        seconds = now - attempt.at - attempt.rtt_s
        is_quick = seconds < group.quick_s and not attempt.read
        if is_quick:  # it may be an error that was not seen: the next ones are looked at
            endpoint.quick += 1
            endpoint.unseen = max(endpoint.unseen, 2)
        if now - endpoint.progress_at[Stage.OVER] < _TIMES_EVERY_S and attempt.good:
            return  # there is more to learn from than a mean needs
        endpoint.reached(attempt, Stage.OVER, now)
        endpoint.cut.add(now, happened=False)
        if not is_quick:
            endpoint.quick = 0
            self._good(endpoint, attempt, now)
        group.sizes.append(attempt.tokens)
        if attempt.timed:
            value = ratio(seconds, attempt.predicted_s)
            if group.total_s.n >= 3:
                endpoint.speed.add(value - group.mean, now)
                self._records.paced.add(endpoint.model)
            group.ended(seconds, value)

    def _cut(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """An answer stopped in the middle: a client that left, or the engine."""
        endpoint.cut.add(now, happened=True)
        if alone(endpoint.cut, (e.cut for e in self._records.others(endpoint)), now):
            self._failed(endpoint, attempt, Kind.CUT, now)

    def _failed(
        self,
        endpoint: Endpoint,
        attempt: Attempt | None,
        kind: Kind,
        now: float,
        reply: Reply | None = None,
    ) -> None:
        settings, breaker = self._records.settings, endpoint.breaker
        slot = self._slot(endpoint, attempt)
        if attempt is not None:
            attempt.judged = True
            if attempt.good:
                breaker.unsay(settings, now)
            if kind is not Kind.HANG:
                endpoint.reached(attempt, Stage.ACCEPTED, now)
        weight = 1.0
        if kind is Kind.RETRIED:
            if breaker.full_until > now - settings.full_s:
                kind = Kind.FULL  # it has just said so where it could be seen
            weight = _RETRIED
        if kind is Kind.FULL:
            endpoint.failures[kind] += 1
            breaker.full(attempt, reply.retry_after_s if reply else None, settings, now)
            self._records.trouble(slot)
            return
        if kind is Kind.DENIED:
            endpoint.denied.add(now, happened=True)
            apart = alone(endpoint.denied, (e.denied for e in self._records.others(endpoint)), now)
            if apart is None:  # siblings are still at it: they have to be heard first
                breaker.pause(now + _UNHEARD_S)
                self._records.trouble(slot)
            if not apart:
                if attempt is not None and attempt is breaker.trial and breaker.kind is Kind.DENIED:
                    breaker.good(attempt, settings, now)  # siblings deny as well: the client's
                    self._records.version += 1
                return
            weight = max(1.0, float(endpoint.denied.row))  # those before it have not counted yet
        if kind is Kind.EVENT and not breaker.doubtful:
            breaker.distrust(_TRUST_AFTER)
        elif kind is Kind.EVENT:
            breaker.doubtful = _TRUST_AFTER
        if kind in (Kind.ERROR, Kind.EVENT) and attempt is not None:
            weight = self._lightness(attempt)
        if kind is Kind.EVENT:  # the quick ones before it were most likely the same
            weight *= 1.0 + endpoint.quick
            endpoint.quick = 0
        endpoint.failures[kind] += 1
        breaker.bad(attempt, kind, weight, settings, self._rng, now)
        self._records.trouble(slot)

    def _lightness(self, attempt: Attempt) -> float:
        """What an error weighs: little where only the heaviest requests meet one.

        1 up to the median of what went well lately, falling to a tenth beyond all of it.
        """
        return max(
            _LIGHTEST, min(1.0, 2.0 * self._records.times(attempt).lightness(attempt.tokens))
        )

    def _slot(self, endpoint: Endpoint, attempt: Attempt | None) -> int:
        if attempt is not None:
            return attempt.slot
        return next(slot for slot, known in self._endpoints.items() if known is endpoint)

    # -- now and then --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Finds endpoints that have fallen silent or slow; to be called when `look_at` is past."""
        self.look_at = now + _LOOK_S
        settings = self._records.settings
        if not settings.enabled:
            return
        for slot, endpoint in self._endpoints.items():
            if endpoint.attempts and now - endpoint.progress_at[Stage.OVER] > settings.overdue_s:
                find_hang(self._records, slot, endpoint, now)
        paced, self._records.paced = self._records.paced, set()
        for model in paced:
            compare(self._records, model, now)

    # -- what is said to a decision ------------------------------------------------------------

    def standing(self, slots: Sequence[int], models: Sequence[str], now: float) -> Standing:
        """What is known of some candidates, each of which serves the model beside it."""
        return standing_of(self._records, slots, models, now)

    def probes_due(self, now: float, most: int) -> list[int]:
        """Slots to ask a question of ours, a few at most; each is named once until `probed`."""
        found: list[int] = []
        if not self.settings.enabled:
            return found
        for slot in self._records.troubled:
            breaker = self._endpoints[slot].breaker
            if len(found) < most and breaker.probe_due(self._records.settings, now):
                breaker.probing = True
                found.append(slot)
        return found

    def probed(
        self, slot: int, reply: Reply | None, now: float, *, failed: Kind | None = None
    ) -> None:
        """What came of it: a reply, a failure without one, or neither: it is out of reach here."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None or not endpoint.breaker.probing:
            return
        breaker = endpoint.breaker
        verdict = judge(reply) if reply is not None else None
        weight = 1
        if verdict is Kind.DENIED and breaker.kind is Kind.DENIED:
            failed, weight = Kind.DENIED, 2  # a client's key may be better than none
        elif verdict in (Kind.STATUS, Kind.ERROR, Kind.EVENT):
            failed = Kind(verdict)
        breaker.tell_probe(failed, weight, self._records.settings, self._rng, now)
        if verdict is Kind.FULL and reply is not None:
            breaker.full(None, reply.retry_after_s, self._records.settings, now)
        self._records.version += 1

    def due(self, standing: Standing, now: float) -> int:
        """A slot whose trial is due now, or -1."""
        for at, slot in standing.trials:
            if at > now:
                break
            endpoint = self._endpoints.get(slot)
            if endpoint is None or not endpoint.breaker.trial_due(now):
                continue
            if now - at > _PROBE_FIRST_S or not endpoint.breaker.probe_due(
                self._records.settings, now
            ):
                return slot
        return -1

    # -- for people ----------------------------------------------------------------------------

    def of(self, slot: int) -> Endpoint | None:
        """The record of a slot, to be looked at only."""
        return self._endpoints.get(slot)

    def known(self) -> Iterable[tuple[int, Endpoint]]:
        """Every record, by slot; to be looked at only."""
        return self._endpoints.items()

    def state(self, slot: int, now: float) -> str:
        """What sets an endpoint apart, in a word or two; empty when nothing does."""
        known = self._endpoints.get(slot)
        if (
            known is None
            or slot not in self._records.troubled
            or not self._records.settings.enabled
        ):
            return ""
        breaker = known.breaker
        if breaker.state is State.OPEN:
            return "failing"
        if breaker.state is State.TRIAL:
            return "on trial"
        if breaker.full_until > now:
            return "full"
        if breaker.state is State.STARTING and breaker.troubled(self._records.settings, now):
            return "starting"
        return "slow" if known.pace > 1.0 else ""

    def answers(self, slot: int, now: float) -> float:
        """P(answers) of a slot; 1 for one that nothing is known of."""
        known = self._endpoints.get(slot)
        return 1.0 if known is None else known.breaker.answers(self._records.settings, now)
