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
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import State
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.pace import ratio
from laar.health.questions import RETRIED, Questions
from laar.health.records import Records
from laar.health.settings import HealthSettings
from laar.health.siblings import alone
from laar.health.silence import compare, find_hang, silent_for_long
from laar.health.standing import Standing, standing_of

__all__ = ["Health", "Word"]

_LOOK_S = 0.25
_READ_EVERY_S = 2.0
"""A sound endpoint's answers are read at least that often."""
_TRUST_AFTER = 4
"""Answers read and found good before an endpoint that sent an error in one is believed unread."""
_LIGHTEST = 0.1
_EVENTS_IN_ROW = 2
"""Errors in a 200 that open, where siblings send none: Envoy repeats nothing, so a third would be
another client's."""
_PROBE_FIRST_S = 1.0
"""How long a trial that is due waits for somebody to ask a question first."""
_TIMES_EVERY_S = 0.01
"""An endpoint's answers are timed so often at the most; that costs more than all the rest here."""
_UNHEARD_S = 0.5
_TRIAL_S = 5.0
"""How long a trial of another picker puts off one's own; then that picker may be gone."""


class Word(NamedTuple):
    """What one picker learned of an endpoint, for the others.

    `what` is ``good``, ``bad`` (`amount` is its weight), ``out`` and ``trial`` (seconds until the
    next trial), ``full`` (seconds of its pause) or ``back``.
    """

    what: str
    kind: Kind
    amount: float


class Health:
    """Learns from attempts which endpoints answer.

    Args:
        settings: thresholds; may be changed.
        rng: spreads trials.
    """

    def __init__(self, settings: HealthSettings, *, rng: random.Random) -> None:
        self._records = Records(settings, rng)
        self._endpoints = self._records.endpoints
        self.questions = Questions(self._records)
        """What the picker asks endpoints itself, and learns from that."""
        self._rng = rng
        self.look_at = 0.0
        """When `look` has something to do."""
        self.reads = True
        """Whether answers may be read."""
        self.on_word: Callable[[int, Word], None] | None = None
        """Gets what other pickers should know of a slot."""

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
        self.questions.drop(slot)

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
            self._say(slot, "trial", endpoint.breaker.kind, _TRIAL_S)
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

    def ended(
        self,
        attempt: Attempt,
        status: int | None,
        cause: str,
        now: float,
        tokens: int | None = None,
    ) -> None:
        """It is over, as a `Completion` says; `tokens` of the answer, where they are known."""
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
            elif whole and tokens is not None and self._is_empty(endpoint, tokens, now):
                self._failed(endpoint, attempt, Kind.EMPTY, now)
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
        breaker = endpoint.breaker
        is_news = attempt.slot in self._records.troubled
        is_back = breaker.good(attempt, self._records.settings, now)
        if is_back:
            self._records.version += 1
        if is_news:
            self._say(attempt.slot, "back" if is_back else "good", breaker.kind, 1.0)

    def _whole(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """An answer ended as it should."""
        if attempt.read and attempt.stage is Stage.ACCEPTED:  # not a byte came
            self._failed(endpoint, attempt, Kind.EVENT, now)
            return
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
        endpoint.cut.add(now, happened=False)
        if is_quick:
            return  # nor does it say how long answers take
        self._good(endpoint, attempt, now)
        group.sizes.append(attempt.tokens)
        if attempt.timed:
            value = ratio(seconds, attempt.predicted_s)
            if group.total_s.n >= 3:
                endpoint.speed.add(value - group.mean, now)
                self._records.paced.add(endpoint.model)
            group.ended(seconds, value)

    def _is_empty(self, endpoint: Endpoint, tokens: int, now: float) -> bool:
        """Whether an answer has no token, and siblings' have: 0 is right for some requests."""
        endpoint.empty.add(now, happened=tokens == 0)
        if tokens:
            return False
        return bool(alone(endpoint.empty, (e.empty for e in self._records.others(endpoint)), now))

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
            weight = RETRIED
        if kind is Kind.FULL:
            endpoint.failures[kind] += 1
            breaker.full(attempt, reply.retry_after_s if reply else None, settings, now)
            self._records.trouble(slot)
            self._say(slot, "full", kind, breaker.full_until - now)
            return
        if kind is Kind.DENIED:
            endpoint.denied.add(now, happened=True)
            if reply is not None and reply.status != 404 and endpoint.admits_still(now):
                return  # it asks for no key, so this one was wrong
            apart = alone(endpoint.denied, (e.denied for e in self._records.others(endpoint)), now)
            if apart is None:  # siblings are still at it: they have to be heard first
                breaker.pause(now + _UNHEARD_S)
                self._records.trouble(slot)
            if not apart:
                if attempt is not None and attempt is breaker.trial and breaker.kind is Kind.DENIED:
                    breaker.good(attempt, settings, now)  # siblings deny as well: the client's
                    self._records.version += 1
                else:
                    self.questions.suspect(endpoint, kind, 1.0, now)
                    self._records.trouble(slot)
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
        row = settings.consecutive_failures
        if kind is Kind.EVENT and not any(
            other.breaker.doubtful for other in self._records.others(endpoint)
        ):
            row = min(row, _EVENTS_IN_ROW)
        is_out = breaker.bad(attempt, kind, weight, settings, self._rng, now, row)
        if not is_out:
            self.questions.suspect(endpoint, kind, weight, now)
        self._records.trouble(slot)
        self._say(slot, "bad", kind, weight)
        if is_out:
            self._say(slot, "out", kind, breaker.trial_at - now)

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

    # -- several pickers -----------------------------------------------------------------------

    def _say(self, slot: int, what: str, kind: Kind, amount: float) -> None:
        if self.on_word is not None:
            self.on_word(slot, Word(what, kind, amount))

    def heard(self, slot: int, model: str, word: Word, now: float) -> None:
        """Another picker has learned something of an endpoint that serves `model`.

        A failure counts as if it had been seen here. Which endpoints are slow or silent each picker
        finds by its own requests.
        """
        endpoint = self._endpoints.get(slot)
        if endpoint is None or endpoint.model != model:
            endpoint = self.know(slot, model, now)
        settings, breaker = self._records.settings, endpoint.breaker
        match word.what:
            case "good":
                breaker.heard_good(settings, now)
            case "bad":
                breaker.bad(None, word.kind, word.amount, settings, self._rng, now)
            case "out":
                breaker.heard_out(word.kind, word.amount, settings, self._rng, now)
            case "back":
                breaker.heard_back(now)
            case "full":
                breaker.pause(now + min(settings.longest_full_s, word.amount))
            case "trial" if breaker.state is State.OPEN:
                breaker.trial_at = max(breaker.trial_at, now + min(_TRIAL_S, word.amount))
        self._records.trouble(slot)

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

    def due(self, standing: Standing, now: float) -> int | None:
        """A slot whose trial is due now."""
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
        return None

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
        is_troubled = breaker.troubled(self._records.settings, now)
        if breaker.state is State.OPEN:
            return "failing"
        if breaker.state in (State.TRIAL, State.SUSPECT):
            return "on trial"
        if breaker.full_until > now:
            return "full"
        if breaker.state is State.STARTING and is_troubled:
            return "starting"
        return "slow" if known.pace > 1.0 else ""

    def answers(self, slot: int, now: float) -> float:
        """P(answers) of a slot; 1 for one that nothing is known of."""
        known = self._endpoints.get(slot)
        return 1.0 if known is None else known.breaker.answers(self._records.settings, now)
