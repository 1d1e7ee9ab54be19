"""Health: P(answers), the pace, and the endpoints without traffic, from outcomes.

One object for a fleet. Everything is by endpoint slot and model name; time is an argument. While
nothing is wrong it costs a record for each request and nothing at all for a decision: it looks only
at endpoints that stand out (`Records.troubled`).

An endpoint is out while its breaker is open. Three bounds keep a mistake small: of those that still
answer now and then at most a share of the candidates is out, the least bad stay at their price;
when all would be out none is, so that clients see the engines' own errors; and endpoints that are
out are tried again, one request at a time.

The share does not hold for endpoints that did nothing but fail. Kept in at any price, they have no
requests in flight, and as the sound ones fill up, they win: with four of five refusing at once and
one of the four kept in, 98 % of the requests failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import LONGEST_FULL_S, State
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.outcomes import Outcomes
from laar.health.questions import Questions
from laar.health.records import Records
from laar.health.settings import HealthSettings
from laar.health.silence import compare, find_hang, silent_for_long
from laar.health.standing import Standing, standing_of

_LOOK_S = 0.25
_READ_EVERY_S = 2.0
"""A sound endpoint's answers are read at least that often."""
_PROBE_FIRST_S = 1.0
"""How long a trial that is due waits for a question to be asked first."""
_BLAMED = (Kind.STATUS, Kind.ERROR, Kind.EVENT)
"""Failures that may be the request's."""
_TRIAL_S = 5.0
"""How long a trial of another picker puts off one's own; then that picker may be gone."""


class Word(NamedTuple):
    """A message about an endpoint, from one picker to the others.

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
        """The picker's own questions to endpoints, and the answers to them."""
        self._outcomes = Outcomes(self._records, self.questions, rng, self._say)
        self._rng = rng
        self.look_at = 0.0
        """Time at which `look` has something to do."""
        self.reads = True
        """Whether answers may be read."""
        self.on_word: Callable[[int, Word], None] | None = None
        """Called with each message about a slot for the other pickers."""

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
        ahead = len(endpoint.attempts)
        attempt = Attempt(
            slot, (model, stream), now, predicted_s, tokens, rtt_s, ahead, trial, timed
        )
        endpoint.attempts[attempt] = None
        if endpoint.breaker.is_limited:
            self._records.version += 1
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
            or (self._records.contested and self._records.is_missed(endpoint, now))
        ):
            endpoint.read_at = now
            return True
        return False

    def replied(
        self,
        attempt: Attempt,
        reply: Reply,
        now: float,
        *,
        read: bool = False,
        excused: bool = False,
    ) -> None:
        """Takes the endpoint's reply: its status, or an error later; `read` if the body is seen.

        `excused` where the request is at fault if it failed.
        """
        endpoint = self._of(attempt)
        if endpoint is None or attempt.stage is Stage.OVER:
            return
        attempt.read = read
        if reply.status == 200 and not reply.event and reply.found is None:  # as nearly always
            if attempt.stage is Stage.SENT:
                self._outcomes.accepted(endpoint, attempt, now)
            return
        verdict = self._records.judge(endpoint, reply, now)
        if reply.found is not None:
            if verdict is not None:
                self._outcomes.judged(endpoint, attempt, verdict, reply, now)
        elif verdict is GOOD:
            if attempt.stage is Stage.SENT:
                self._outcomes.accepted(endpoint, attempt, now)
        elif verdict is None:
            if not reply.event:
                endpoint.denied.add(now, happened=False)
            if attempt.good and reply.event:
                endpoint.breaker.retract_good(now)
            endpoint.reached(attempt, Stage.ACCEPTED, now)
            endpoint.breaker.end_trial(attempt, self._rng, now)
            attempt.judged = True
        else:
            self._outcomes.failed(endpoint, attempt, Kind(verdict), now, reply, excused=excused)

    def answering(self, attempt: Attempt, now: float) -> None:
        """Note that an answer has begun, or goes on; what it is worth comes by `replied`."""
        attempt.progress_at = now
        endpoint = self._of(attempt)
        if endpoint is None or attempt.stage >= Stage.ANSWERING or attempt.judged:
            return
        if attempt.timed:
            self._records.times(attempt).saw(Stage.ANSWERING, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ANSWERING, now)

    def ended(self, attempt: Attempt, status: int | None, cause: str, now: float) -> None:
        """Ends an attempt by its `Completion`'s values."""
        endpoint = self._of(attempt)
        if endpoint is None:
            return
        if not attempt.judged and attempt.stage is Stage.SENT and status is not None:
            self.replied(attempt, Reply(status=status), now)
        self._leave(endpoint, attempt)
        whole = cause == "complete" and status is not None and status < 300
        if attempt.stage is not Stage.OVER and not attempt.judged:
            if whole and attempt.overdue and attempt.stage is Stage.ACCEPTED and not attempt.read:
                pass  # an unread answer that was given up looks like one that came to its end
            elif whole:
                self._outcomes.whole(endpoint, attempt, now)
            elif cause == "reset":
                self._outcomes.cut(endpoint, attempt, now)
            elif not attempt.overdue and silent_for_long(self._records, endpoint, attempt, now):
                self._outcomes.failed(endpoint, attempt, Kind.HANG, now)
        endpoint.breaker.end_trial(attempt, self._rng, now)
        attempt.stage = Stage.OVER

    @property
    def blames(self) -> bool:
        """Whether requests have failed wherever they went: then traits of all count."""
        return len(self._records.blame) > 0

    def retried(
        self, traits: Iterable[int], failed: Collection[int], reply: Reply | None, now: float
    ) -> Kind:
        """Takes how a request ended; returns why the attempts before the last most likely failed.

        `Kind.REQUEST` where it is at fault, and not the endpoints, of which the last one is one.

        Args:
            traits: what it has in common with others: see `laar.health.blame`.
            failed: slots of all attempts, the last one's included.
            reply: the last one; None where there was none.
            now: seconds of the clock.
        """
        verdict = None if reply is None else judge(reply)
        blame = self._records.blame
        if verdict is GOOD:
            blame.good(traits, now)
        if verdict is Kind.FULL:
            return Kind.FULL
        if reply is not None and verdict not in _BLAMED:
            return Kind.RETRIED
        if reply is not None and reply.event:
            blame.good(traits, now, count=-1.0)  # its status had counted
        proved = [
            slot
            for slot in failed
            if (known := self._endpoints.get(slot)) is not None and known.is_proved(now)
        ]
        if proved:
            blame.bad(traits, proved, now)
        if len(set(failed)) > 1 or blame.is_culprit(traits, now):
            return Kind.REQUEST
        return Kind.RETRIED

    def refused(self, slot: int, count: float, now: float) -> None:
        """Takes how many requests an endpoint's page says that it has refused since the last."""
        endpoint = self._endpoints.get(slot)
        if endpoint is not None:
            self._outcomes.refused(slot, endpoint, count, now)

    def is_culprit(self, traits: Iterable[int], now: float) -> bool:
        """Whether a request is like others that failed wherever they went."""
        return self._records.blame.is_culprit(traits, now)

    def passed_over(
        self,
        slot: int,
        now: float,
        attempt: Attempt | None = None,
        kind: Kind = Kind.RETRIED,
    ) -> None:
        """Envoy's attempt there failed; `attempt` where the request was decided for this slot."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None:
            return
        excused = kind is Kind.REQUEST
        kind = Kind.RETRIED if excused else kind
        self._outcomes.failed(endpoint, attempt, kind, now, excused=excused)
        if attempt is not None:
            self._leave(endpoint, attempt)
            attempt.stage = Stage.OVER

    def gone(self, attempt: Attempt, now: float) -> None:
        """Drops an attempt that another endpoint serves."""
        endpoint = self._of(attempt)
        if endpoint is not None:
            self._leave(endpoint, attempt)
            endpoint.breaker.end_trial(attempt, self._rng, now)
            attempt.stage = Stage.OVER

    def _leave(self, endpoint: Endpoint, attempt: Attempt) -> None:
        endpoint.attempts.pop(attempt, None)
        if endpoint.breaker.is_limited:
            self._records.version += 1

    def _of(self, attempt: Attempt) -> Endpoint | None:
        """Its endpoint, unless the slot has another by now."""
        endpoint = self._endpoints.get(attempt.slot)
        return endpoint if endpoint is not None and attempt in endpoint.attempts else None

    # -- several pickers -----------------------------------------------------------------------

    def _say(self, slot: int, what: str, kind: Kind, amount: float) -> None:
        if self.on_word is not None:
            self.on_word(slot, Word(what, kind, amount))

    def heard(self, slot: int, model: str, word: Word, now: float) -> None:
        """Takes another picker's message about an endpoint that serves `model`.

        A failure counts as if this picker had seen it. Each picker finds slow and silent endpoints
        by its own requests.
        """
        endpoint = self._endpoints.get(slot)
        if endpoint is None or endpoint.model != model:
            endpoint = self.know(slot, model, now)
        settings, breaker = self._records.settings, endpoint.breaker
        match word.what:
            case "good":
                breaker.heard_good(now)
            case "bad":
                breaker.bad(None, word.kind, word.amount, settings, self._rng, now)
            case "out":
                breaker.heard_out(word.kind, word.amount, settings, self._rng, now)
            case "back":
                breaker.heard_back(now)
            case "full":
                breaker.pause(now + min(LONGEST_FULL_S, word.amount))
            case "trial" if breaker.state is State.OPEN:
                breaker.trial_at = max(breaker.trial_at, now + min(_TRIAL_S, word.amount))
        self._records.trouble(slot)

    # -- now and then --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Finds endpoints that have fallen silent or slow; to be called when `look_at` is past."""
        self.look_at = now + _LOOK_S
        if not self._records.settings.enabled:
            return
        for slot, endpoint in self._endpoints.items():
            if endpoint.attempts:
                find_hang(self._records, self.questions, slot, endpoint, now)
        paced, self._records.paced = self._records.paced, set()
        for model in paced:
            compare(self._records, model, now)

    # -- for decisions -------------------------------------------------------------------------

    def standing(self, slots: Sequence[int], models: Sequence[str], now: float) -> Standing:
        """The standing of some candidates, each of which serves the model beside it."""
        return standing_of(self._records, slots, models, now)

    def set_apart(self, slots: Sequence[int], now: float) -> Standing:
        """The same as `standing`, for endpoints that no request depends on: those out stay out."""
        kept, trials, until = [], [], now + 1.0
        for slot in slots:
            known = self._endpoints.get(slot)
            if known is None or not self._records.settings.enabled:
                kept.append(slot)
            elif known.breaker.is_out:
                trials.append((known.breaker.trial_at, slot))
            elif known.is_full(now):
                until = min(until, max(known.breaker.full_until, now + _LOOK_S))
            else:
                kept.append(slot)
        until = min([until, *(at for at, _ in trials if at > now)])
        return Standing(slots=kept, trials=sorted(trials), until=until)

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

    # -- for reports ---------------------------------------------------------------------------

    def of(self, slot: int) -> Endpoint | None:
        """The record of a slot, to be looked at only."""
        return self._endpoints.get(slot)

    def known(self) -> Iterable[tuple[int, Endpoint]]:
        """Every record, by slot; to be looked at only."""
        return self._endpoints.items()

    def state(self, slot: int, now: float) -> str:
        """The trouble of an endpoint, in a word or two; empty when it has none."""
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
        if known.is_full(now):
            return "full"
        if breaker.state is State.STARTING and is_troubled:
            return "starting"
        return "slow" if known.pace > 1.0 else ""

    def fault(self, slot: int) -> str:
        """Return why an endpoint is out, in words; empty for one that is not."""
        known = self._endpoints.get(slot)
        return known.fault if known is not None and known.breaker.is_out else ""

    def answers(self, slot: int, now: float) -> float:
        """P(answers) of a slot; 1 for one that nothing is known of."""
        known = self._endpoints.get(slot)
        return 1.0 if known is None else known.breaker.answers(now)
