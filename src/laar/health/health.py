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
from dataclasses import dataclass, field

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import State
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.pace import GroupTimes, ratio
from laar.health.settings import HealthSettings
from laar.health.siblings import alone

__all__ = ["Health", "Standing"]

_LOOK_S = 0.25
_OVERTAKEN = 3
"""Later requests that siblings got as far, before silence is the endpoint's own."""
_READ_EVERY_S = 2.0
"""A sound endpoint's answers are read at least that often."""
_TRUST_AFTER = 4
"""Answers read and found good before an endpoint that sent an error in one is believed unread."""
_LIGHTEST = 0.1
_RETRIED = 0.5
"""Weight of a failure that is only known by Envoy's having gone on: it may have been a 429."""
_PROBE_FIRST_S = 1.0
"""How long a trial that is due waits for somebody to ask a question first."""
_UNHEARD_S = 0.5
_MAX_GROUPS = 4096


@dataclass(slots=True, kw_only=True)
class Standing:
    """What health says of some candidates.

    Args:
        slots: those that get traffic.
        answers: P(answers) of each of them; None where all are sound.
        pace: how many times slower than its siblings each is; None where none is.
        typical_s: a whole answer of each one's model, seconds; None with `pace`.
        trials: slots that are out, by the time their next trial is due.
        left_out: why the others get none.
        all_failing: all are out, so all are tried.
        until: when this has to be worked out anew.
    """

    slots: Sequence[int]
    answers: Sequence[float] | None = None
    pace: Sequence[float] | None = None
    typical_s: Sequence[float] | None = None
    trials: Sequence[tuple[float, int]] = ()
    left_out: dict[int, str] = field(default_factory=dict)
    all_failing: bool = False
    until: float = float("inf")


class Health:
    """Learns from attempts which endpoints answer.

    Args:
        settings: thresholds; may be changed.
        rng: spreads trials.
    """

    def __init__(self, settings: HealthSettings, *, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.version = 0
        """Changes when an endpoint's standing does, other than by time."""
        self.look_at = 0.0
        """When `look` has something to do."""
        self.reads = True
        """Whether answers may be read."""
        self._endpoints: dict[int, Endpoint] = {}
        self._siblings: dict[str, set[int]] = {}
        self._groups: dict[tuple[str, bool], GroupTimes] = {}
        self._troubled: set[int] = set()
        self._paced: set[str] = set()
        self._began_at: float | None = None

    @property
    def settings(self) -> HealthSettings:
        """Thresholds."""
        return self._settings

    @settings.setter
    def settings(self, settings: HealthSettings) -> None:
        self._settings = settings
        self.version += 1

    # -- membership ----------------------------------------------------------------------------

    def know(self, slot: int, model: str, now: float) -> Endpoint:
        """The record of a slot; a new one starts slowly where others have been there for long."""
        known = self._endpoints.get(slot)
        if known is not None and known.model == model:
            return known
        if known is not None:
            self.drop(slot)
        made = self._endpoints[slot] = Endpoint(model)
        if self._began_at is None:
            self._began_at = now
        siblings = self._siblings.setdefault(model, set())
        if siblings and now - self._began_at > self._settings.slow_start_s:
            made.breaker.start_slowly(now)
            self._trouble(slot)
        siblings.add(slot)
        return made

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        known = self._endpoints.pop(slot, None)
        if known is None:
            return
        self._troubled.discard(slot)
        siblings = self._siblings[known.model]
        siblings.discard(slot)
        if not siblings:
            del self._siblings[known.model]
            self._paced.discard(known.model)
            for stream in (False, True):
                self._groups.pop((known.model, stream), None)
        self.version += 1

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
        trial: bool = False,
        timed: bool = True,
    ) -> Attempt:
        """A request was decided for a slot."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None or endpoint.model != model:
            endpoint = self.know(slot, model, now)
        attempt = Attempt(slot, (model, stream), now, predicted_s, tokens, trial, timed)
        endpoint.attempts[attempt] = None
        if trial:
            endpoint.breaker.begin_trial(attempt)
            self.version += 1
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
                endpoint.breaker.unsay(self._settings, now)
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
            self._times(attempt).saw(Stage.ANSWERING, now - attempt.at, attempt.predicted_s)
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
            elif not attempt.overdue and self._silent_for_long(endpoint, attempt, now):
                self._failed(endpoint, attempt, Kind.HANG, now)
        endpoint.breaker.tells_nothing(attempt, self._rng, now)
        attempt.stage = Stage.OVER

    def passed_over(self, slot: int, now: float) -> None:
        """Envoy tried this endpoint and went on to another."""
        endpoint = self._endpoints.get(slot)
        if endpoint is not None:
            self._failed(endpoint, None, Kind.RETRIED, now)

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
            self._times(attempt).saw(Stage.ACCEPTED, now - attempt.at, attempt.predicted_s)
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
        if endpoint.breaker.good(attempt, self._settings, now):
            self.version += 1

    def _whole(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """An answer ended as it should."""
        group = self._times(attempt)
        seconds = now - attempt.at
        endpoint.reached(attempt, Stage.OVER, now)
        endpoint.cut.add(now, happened=False)
        if seconds < group.quick_s and not attempt.read:
            endpoint.quick += 1
            if endpoint.quick >= 2:
                endpoint.unseen = max(endpoint.unseen, 2)
        else:
            endpoint.quick = 0
            self._good(endpoint, attempt, now)
        group.sizes.append(attempt.tokens)
        if attempt.timed:
            value = ratio(seconds, attempt.predicted_s)
            if group.total_s.n >= 3:
                endpoint.speed.add(value - group.mean, now)
                self._paced.add(endpoint.model)
            group.ended(seconds, value)

    def _cut(self, endpoint: Endpoint, attempt: Attempt, now: float) -> None:
        """An answer stopped in the middle: a client that left, or the engine."""
        endpoint.cut.add(now, happened=True)
        if alone(endpoint.cut, (e.cut for e in self._others(endpoint)), now):
            self._failed(endpoint, attempt, Kind.CUT, now)

    def _failed(
        self,
        endpoint: Endpoint,
        attempt: Attempt | None,
        kind: Kind,
        now: float,
        reply: Reply | None = None,
    ) -> None:
        settings, breaker = self._settings, endpoint.breaker
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
            self._trouble(slot)
            return
        if kind is Kind.DENIED:
            endpoint.denied.add(now, happened=True)
            apart = alone(endpoint.denied, (e.denied for e in self._others(endpoint)), now)
            if apart is None:  # siblings are still at it: they have to be heard first
                breaker.pause(now + _UNHEARD_S)
                self._trouble(slot)
            if not apart:
                if attempt is not None and attempt is breaker.trial and breaker.kind is Kind.DENIED:
                    breaker.good(attempt, settings, now)  # siblings deny as well: the client's
                    self.version += 1
                return
            weight = max(1.0, float(endpoint.denied.row))  # those before it have not counted yet
        if kind is Kind.EVENT and not breaker.doubtful:
            breaker.distrust(_TRUST_AFTER)
        elif kind is Kind.EVENT:
            breaker.doubtful = _TRUST_AFTER
        if kind in (Kind.ERROR, Kind.EVENT) and attempt is not None:
            weight = self._lightness(attempt)
        endpoint.failures[kind] += 1
        breaker.bad(attempt, kind, weight, settings, self._rng, now)
        self._trouble(slot)

    def _lightness(self, attempt: Attempt) -> float:
        """What an error weighs: little where only the heaviest requests meet one.

        1 up to the median of what went well lately, falling to a tenth beyond all of it.
        """
        return max(_LIGHTEST, min(1.0, 2.0 * self._times(attempt).lightness(attempt.tokens)))

    def _others(self, endpoint: Endpoint) -> Iterable[Endpoint]:
        for slot in self._siblings.get(endpoint.model, ()):
            other = self._endpoints[slot]
            if other is not endpoint:
                yield other

    def _slot(self, endpoint: Endpoint, attempt: Attempt | None) -> int:
        if attempt is not None:
            return attempt.slot
        return next(slot for slot, known in self._endpoints.items() if known is endpoint)

    def _times(self, attempt: Attempt) -> GroupTimes:
        group = self._groups.get(attempt.group)
        if group is None:
            if len(self._groups) >= _MAX_GROUPS:
                self._groups.clear()
            group = self._groups[attempt.group] = GroupTimes()
        return group

    def _trouble(self, slot: int) -> None:
        self._troubled.add(slot)
        self.version += 1

    # -- silence and slowness ------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Finds endpoints that have fallen silent or slow; to be called when `look_at` is past."""
        self.look_at = now + _LOOK_S
        settings = self._settings
        if not settings.enabled:
            return
        for slot, endpoint in self._endpoints.items():
            if endpoint.attempts and now - endpoint.progress_at[Stage.OVER] > settings.overdue_s:
                self._find_hang(slot, endpoint, now)
        paced, self._paced = self._paced, set()
        for model in paced:
            self._compare(model, now)

    def _find_hang(self, slot: int, endpoint: Endpoint, now: float) -> None:
        breaker = endpoint.breaker
        for attempt in endpoint.attempts:
            if now - attempt.at <= self._settings.overdue_s:
                return  # and all after it are younger
            if attempt.overdue or attempt.judged:
                continue
            if not self._silent_for_long(endpoint, attempt, now):
                continue
            attempt.overdue = True
            on_trial = attempt is breaker.trial
            if breaker.is_out and not on_trial:
                continue
            endpoint.failures[Kind.HANG] += 1
            breaker.bad(attempt, Kind.HANG, 1.0, self._settings, self._rng, now)
            if not breaker.is_out:
                breaker.open(Kind.HANG, self._settings, self._rng, now)
            self._trouble(slot)

    def _silent_for_long(self, endpoint: Endpoint, attempt: Attempt, now: float) -> bool:
        """Whether nothing has come for far longer than is usual, while siblings went on."""
        if attempt.overdue:
            return True
        if not attempt.timed:
            return False
        waiting_for = Stage(attempt.stage + 1)
        if attempt.stage is Stage.ACCEPTED and not attempt.read:
            waiting_for = Stage.OVER
        since = max(attempt.at, endpoint.last_progress_at(waiting_for))
        silent_s = now - since
        if silent_s <= self._settings.overdue_s:
            return False
        usual = Stage.OVER if not attempt.group[1] else waiting_for
        if silent_s <= self._times(attempt).limit_s(usual, attempt.predicted_s):
            return False
        overtaken = 0
        for other in self._others(endpoint):
            overtaken += other.overtook(since, waiting_for)
            if overtaken >= _OVERTAKEN:
                return True
        return False

    def _compare(self, model: str, now: float) -> None:
        """Works out the pace of each endpoint of a model against the median of the others."""
        known = sorted(
            (
                (endpoint.speed.mean, slot)
                for slot in self._siblings.get(model, ())
                if (endpoint := self._endpoints[slot]).speed.weight(now) >= 1.0
            ),
        )
        spread = max(
            (g.spread for stream in (False, True) if (g := self._groups.get((model, stream)))),
            default=1.0,
        )
        for place, (_, slot) in enumerate(known):
            endpoint = self._endpoints[slot]
            pace = 1.0
            if len(known) > 1:
                pace = endpoint.speed.pace(_median_but(known, place), spread, now)
            if abs(pace - endpoint.pace) > 0.1 * endpoint.pace:
                endpoint.pace = pace
                self._trouble(slot)

    # -- what is said to a decision ------------------------------------------------------------

    def standing(self, slots: Sequence[int], models: Sequence[str], now: float) -> Standing:
        """What is known of some candidates, each of which serves the model beside it."""
        for slot, model in zip(slots, models, strict=True):
            known = self._endpoints.get(slot)
            if known is None or known.model != model:
                self.know(slot, model, now)
        settings = self._settings
        if not self._troubled or not settings.enabled:
            return Standing(slots=slots)
        troubled = [slot for slot in slots if slot in self._troubled and self._is_so(slot, now)]
        if not troubled:
            return Standing(slots=slots)
        return self._standing(slots, troubled, now)

    def _is_so(self, slot: int, now: float) -> bool:
        endpoint = self._endpoints[slot]
        if endpoint.speed.weight(now) < 1.0:
            endpoint.pace = 1.0  # nothing was heard for so long that it deserves another look
        if endpoint.pace > 1.0 or endpoint.breaker.troubled(self._settings, now):
            return True
        self._troubled.discard(slot)
        return False

    def _standing(self, slots: Sequence[int], troubled: Sequence[int], now: float) -> Standing:
        settings = self._settings
        answers = {s: self._endpoints[s].breaker.answers(settings, now) for s in troubled}
        out = [s for s in troubled if self._endpoints[s].breaker.is_out]
        trials = sorted((self._endpoints[s].breaker.trial_at, s) for s in out)
        all_failing = len(out) == len(slots)
        if all_failing:
            out, trials = [], []
        hopeless = [s for s in out if self._endpoints[s].breaker.is_hopeless]
        most = max(len(hopeless), int(settings.max_out_share * len(slots)), 1)
        if len(out) > most:
            rest = sorted(set(out).difference(hopeless), key=lambda s: answers[s])
            out = hopeless + rest[: most - len(hopeless)]
        left_out = {s: self._why(s, now) for s in out}
        kept = [s for s in slots if s not in left_out]
        full = [s for s in kept if s in answers and self._endpoints[s].breaker.full_until > now]
        until = [now + 1.0]
        until += [at for at, _ in trials if at > now]
        if full and len(full) < len(kept):
            until += [self._endpoints[s].breaker.full_until for s in full]
            for slot in full:
                wait_s = self._endpoints[slot].breaker.full_until - now
                left_out[slot] = f"full: it refused a request, and is asked again in {wait_s:.1f} s"
            kept = [s for s in kept if s not in left_out]
        paces = [self._endpoints[s].pace for s in kept]
        slow = any(pace > 1.0 for pace in paces)
        return Standing(
            slots=kept,
            answers=[answers.get(s, 1.0) for s in kept],
            pace=paces if slow else None,
            typical_s=[self._typical_s(s) for s in kept] if slow else None,
            trials=[(at, s) for at, s in trials if s in left_out],
            left_out=left_out,
            all_failing=all_failing,
            until=min(until),
        )

    def _typical_s(self, slot: int) -> float:
        model = self._endpoints[slot].model
        groups = [g for stream in (False, True) if (g := self._groups.get((model, stream)))]
        return max((group.typical_s for group in groups), default=0.0)

    def _why(self, slot: int, now: float) -> str:
        breaker = self._endpoints[slot].breaker
        if breaker.state is State.TRIAL:
            return f"failing ({breaker.kind}): a request is on trial there"
        wait_s = max(0.0, breaker.trial_at - now)
        return f"failing ({breaker.kind}): the next trial is due in {wait_s:.1f} s"

    def probes_due(self, now: float, most: int) -> list[int]:
        """Slots to ask a question of ours, a few at most; each is named once until `probed`."""
        found: list[int] = []
        for slot in self._troubled:
            breaker = self._endpoints[slot].breaker
            if len(found) < most and breaker.probe_due(self._settings, now):
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
        breaker.tell_probe(failed, weight, self._settings, self._rng, now)
        if verdict is Kind.FULL and reply is not None:
            breaker.full(None, reply.retry_after_s, self._settings, now)
        self.version += 1

    def due(self, standing: Standing, now: float) -> int:
        """A slot whose trial is due now, or -1."""
        for at, slot in standing.trials:
            if at > now:
                break
            endpoint = self._endpoints.get(slot)
            if endpoint is None or not endpoint.breaker.trial_due(now):
                continue
            if now - at > _PROBE_FIRST_S or not endpoint.breaker.probe_due(self._settings, now):
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
        if known is None or slot not in self._troubled or not self._settings.enabled:
            return ""
        breaker = known.breaker
        if breaker.state is State.OPEN:
            return "failing"
        if breaker.state is State.TRIAL:
            return "on trial"
        if breaker.full_until > now:
            return "full"
        if breaker.state is State.STARTING and breaker.troubled(self._settings, now):
            return "starting"
        return "slow" if known.pace > 1.0 else ""

    def answers(self, slot: int, now: float) -> float:
        """P(answers) of a slot; 1 for one that nothing is known of."""
        known = self._endpoints.get(slot)
        return 1.0 if known is None else known.breaker.answers(self._settings, now)


def _median_but(known: Sequence[tuple[float, int]], place: int) -> float:
    """The median of sorted means without the one at `place`."""
    left = len(known) - 1

    def at(index: int) -> float:
        return known[index if index < place else index + 1][0]

    return 0.5 * (at((left - 1) // 2) + at(left // 2))
