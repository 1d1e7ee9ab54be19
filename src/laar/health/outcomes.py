"""The effect of an outcome on its endpoint's health: good, a failure, or neither.

Before a failure that may be a client's fault (a wrong key, an answer cut off) is counted, the
endpoint is compared with its siblings.
"""

from __future__ import annotations

from laar.health.breaker import FULL_S
from laar.health.endpoint import Attempt, Member, Stage
from laar.health.kinds import DULL, GOOD, USELESS, Kind, Reply
from laar.health.questions import RETRIED, Questions
from laar.health.recent import stands_out
from laar.health.records import Records
from laar.health.requests import Asked

_ADMITS_STILL_S = 5.0
_LIGHTEST = 0.1
_LIGHT = 0.5
"""Minimum weight of an error that triggers a probe: a lighter error may be due to its prompt alone,
which a tiny probe cannot tell."""
_EVENTS_IN_ROW = 2
"""Consecutive errors in answers with status 200 that open the breaker if siblings send none. Envoy
doesn't retry these, so a third one would reach another client."""
_TIMES_EVERY_S = 0.01
"""Minimum seconds between timed answers of an endpoint, as timing is the main cost here."""
_UNHEARD_S, _FORGIVEN_S = 0.5, 300.0
"""Length of a pause to hear siblings, and time after which earlier ones are forgotten."""
_REFUSALS_S = 30.0
"""Seconds between a refusal seen on the metrics page and the attempt that Envoy reports, or the
reverse, within which the one explains the other."""
_MOST_REFUSALS = 1000.0
_FOR_ONE_MODEL = frozenset((Kind.STATUS, Kind.ERROR, Kind.EVENT, Kind.RETRIED, Kind.DENIED))
_FIRST_TEXTS = 4
"""Texts of a new endpoint that say nothing of its dullness: the first can't repeat any."""
_FLAWS = USELESS | {Kind.REJECTED}
_IN_BODY = USELESS | {Kind.HANG, Kind.EVENT, Kind.CUT}
"""Kinds of failure that follow good headers."""


class Outcomes:
    """Applies outcomes to the endpoints' records."""

    def __init__(self, records: Records, questions: Questions) -> None:
        self._records = records
        self._questions = questions

    # -- good answers --------------------------------------------------------------------------

    def accepted(self, attempt: Attempt, now: float) -> None:
        """Record that the endpoint accepted the request."""
        endpoint = attempt.endpoint
        if attempt.timed and attempt.stream:  # without streaming, headers come at the end
            times = endpoint.family.times[attempt.stream]
            times.saw(Stage.ACCEPTED, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ACCEPTED, now)
        endpoint.denied.note(now, happened=False)
        breaker = endpoint.breaker
        # Silence and errors can follow good headers, so wait for the body.
        hidden = breaker.is_out and (attempt.read or breaker.kind in _IN_BODY)
        if not (hidden or endpoint.doubted):
            self.good(attempt, now)
        if endpoint.in_a_row:
            endpoint.in_a_row.pop(endpoint.model, None)
            if not attempt.read:  # else the body decides
                endpoint.in_a_row.pop(attempt.name, None)

    def good(self, attempt: Attempt, now: float) -> None:
        """Record a good answer."""
        endpoint, records = attempt.endpoint, self._records
        breaker = endpoint.breaker
        if attempt.good and not breaker.is_out:
            return
        attempt.good = True
        endpoint.prove(now, attempt.name)
        is_back = breaker.record_success(attempt, now)
        if is_back:
            records.version += 1
        if endpoint.slot in records.outliers:
            records.say(endpoint, "back" if is_back else "good", breaker.kind, 1.0)

    def completed(self, attempt: Attempt, now: float) -> None:
        """Record a complete answer."""
        endpoint = attempt.endpoint
        if attempt.blamed:  # it was slow, not silent
            endpoint.breaker.forgive(1.0, now)
        times = endpoint.family.times[attempt.stream]
        if now - endpoint.progress_at[Stage.OVER] < _TIMES_EVERY_S and attempt.good:
            return  # the mean has enough samples
        endpoint.reached(attempt, Stage.OVER, now)
        if attempt.read:
            endpoint.cut.note(now, happened=False)
        if not attempt.read or endpoint.breaker.is_out:
            self.good(attempt, now)
        times.sizes.append(attempt.tokens)
        if attempt.timed:
            times.ended(now - attempt.at - attempt.rtt_s, attempt.predicted_s)

    def refused_or_not(
        self, endpoint: Member, verdict: Kind | str | None, asked: Asked, now: float
    ) -> bool:
        """Record whether a request was refused; return False if its client may be at fault."""
        refused = verdict is None or verdict is Kind.DENIED
        if not refused and verdict is not GOOD:
            return True
        is_evidence = self._records.refusals.note(endpoint, asked, now, refused=refused)
        self._hear_siblings(endpoint, is_evidence, now)
        return is_evidence is True

    # -- answers that began with 200 -----------------------------------------------------------

    def judged(
        self, attempt: Attempt, verdict: Kind | str, reply: Reply, now: float, asked: Asked
    ) -> None:
        """Record the verdict on an answer from its headers or body."""
        endpoint = attempt.endpoint
        if attempt.judged:
            return
        if verdict is Kind.CUT:
            self.cut(attempt, now, asked)
            return
        if verdict is not GOOD:
            self._useless(attempt, Kind(verdict), reply.detail or reply.model, now, asked)
            return
        before = endpoint.said.get(reply.said, asked.prompt)
        if reply.said:
            endpoint.said[reply.said] = asked.prompt
        seems = Kind.REPEATED if before != asked.prompt else reply.seems
        if seems is not None and self._useless(attempt, seems, "", now, asked):
            return
        if seems is None:
            if len(endpoint.said) > _FIRST_TEXTS:
                endpoint.dull.note(now, happened=False)
            self._records.dull_clients.good(endpoint.slot, asked.clients, now)
            self._records.refusals.count(endpoint, asked, now, happened=False, read=True)
        self._records.clients.good(endpoint.slot, asked.clients, now)
        endpoint.to_read = max(0, endpoint.to_read - 1)
        endpoint.doubted = endpoint.doubted and endpoint.to_read > 0
        endpoint.useless.note(now, happened=False)
        if attempt.stage is Stage.SENT:
            self.accepted(attempt, now)
        breaker = endpoint.breaker
        if not (breaker.is_out and breaker.kind is Kind.HANG and attempt.stream):
            self.good(attempt, now)  # after a hang, wait for the end: it may stall again
        endpoint.in_a_row.pop(attempt.name, None)

    def cut(self, attempt: Attempt, now: float, asked: Asked) -> None:
        """Record an answer that was cut off: the client disconnected, or the engine stopped."""
        endpoint = attempt.endpoint
        attempt.judged = True
        if not self._records.clients.flawed(endpoint.slot, asked, now):
            return
        endpoint.cut.note(now, happened=True)
        endpoint.family.contest(now)
        if stands_out(endpoint.cut, (other.cut for other in endpoint.others()), now):
            self.failed(endpoint, attempt, Kind.CUT, now)

    def _useless(self, attempt: Attempt, kind: Kind, flaw: str, now: float, asked: Asked) -> bool:
        """Record a useless answer; return whether it says so of the endpoint, or nothing yet.

        It counts only if siblings' answers are useful. A probe settles most cases: unlike a client,
        it never asks for an empty answer. A dull answer is good until its endpoint stands out.
        """
        endpoint, records, is_dull = attempt.endpoint, self._records, kind in DULL
        breaker = endpoint.breaker
        on_trial = attempt is breaker.trial
        clients = records.dull_clients if is_dull else records.clients
        habit = endpoint.dull if is_dull else endpoint.useless
        counts = clients.flawed(endpoint.slot, asked, now)
        if counts:
            habit.note(now, happened=True)
            if records.refusals.seen or not is_dull:
                records.refusals.count(endpoint, asked, now, happened=True, read=True)
        elif not is_dull:
            self._hear_siblings(endpoint, counts, now)
        if is_dull and not counts:
            return False
        # Endpoints excluded for their own failures do not excuse others.
        sound = [other for other in endpoint.others() if not other.breaker.is_open]
        others = [other.dull if is_dull else other.useless for other in sound]
        is_alone = all(each.is_quiet(now) for each in others)
        apart = stands_out(habit, others, now)
        fails = counts and (apart or (on_trial and len(others) > 0 and is_alone))
        fails = fails and (is_dull or bool(asked.marks))  # else wait for requests whose are read
        fails = fails and not records.refusals.explains(endpoint, asked.marks)
        if is_dull and not fails:
            if is_alone and habit.row > 1:  # read more, to compare
                endpoint.to_read = max(endpoint.to_read, 2)
                endpoint.family.contest(now)
            return False
        attempt.judged = attempt.useless = True
        if attempt.stage is Stage.SENT:
            endpoint.reached(attempt, Stage.ACCEPTED, now)
        if attempt.good:
            attempt.good = False
            breaker.recent.add(now, good=-1.0)
        if not counts:
            breaker.end_trial(attempt, now)
            return True
        endpoint.flaw = flaw
        endpoint.family.contest(now)
        endpoint.doubt()
        if fails:
            self.failed(endpoint, attempt, kind, now)
            return True
        self._hear_siblings(endpoint, apart, now)
        if is_alone:
            self._questions.suspect(endpoint, kind, now)
        records.mark(endpoint)
        return True

    def _hear_siblings(self, endpoint: Member, is_at_fault: bool | None, now: float) -> None:
        """If that is not known (None), pause an endpoint, so that siblings answer its clients."""
        quiet_s = now - endpoint.heard_at
        if is_at_fault is None and quiet_s >= endpoint.unheard_s:
            gap_s = endpoint.unheard_s if quiet_s < _FORGIVEN_S else 0.0
            endpoint.heard_at, endpoint.unheard_s = now, 4.0 * (gap_s + _UNHEARD_S)
            endpoint.breaker.doubt(now + _UNHEARD_S)
            self._records.mark(endpoint)

    # -- failures ------------------------------------------------------------------------------

    def failed(
        self,
        endpoint: Member,
        attempt: Attempt | None,
        kind: Kind,
        now: float,
        reply: Reply | None = None,
        *,
        excused: bool = False,
        is_evidence: bool = True,
    ) -> None:
        """Record a failure, which is the request's fault if `excused`.

        Even then it is counted until the endpoint proves that it answers other requests. A denial
        counts only if it `is_evidence` against the endpoint rather than its client.
        """
        records, breaker = self._records, endpoint.breaker
        if kind is not Kind.DENIED:
            records.mark(endpoint)
        if attempt is not None:
            attempt.judged = True
            if attempt.good:
                breaker.recent.add(now, good=-1.0)
            if kind is not Kind.HANG:
                endpoint.reached(attempt, Stage.ACCEPTED, now)
        if kind is Kind.RETRIED:
            latest_full = max(breaker.full_until, breaker.limited_at)
            if endpoint.refusals >= 1.0 or latest_full > now - FULL_S:
                kind = Kind.FULL  # its metrics count a refusal, or it just reported being full
            else:
                endpoint.retried.append((now, attempt))
        if kind is Kind.FULL:
            self._full(endpoint, attempt, reply, now)
            return
        name = attempt.name if attempt is not None and kind in _FOR_ONE_MODEL else endpoint.model
        is_names = name != endpoint.model and self._questions.failed_for(endpoint, name)
        excused = excused or is_names
        if excused and endpoint.is_proved(now, but=name if is_names else ""):
            endpoint.failures[Kind.REQUEST] += 1
            if attempt is not None:
                breaker.end_trial(attempt, now)
            self._questions.suspect(endpoint, kind, now, excused=True)
            return
        if excused:
            endpoint.disputed += RETRIED if kind is Kind.RETRIED else 1.0
        if kind is Kind.DENIED and not (
            is_evidence and self._denied_alone(endpoint, attempt, reply, now)
        ):
            return
        weight, row = self._weight(endpoint, attempt, kind)
        endpoint.failures[kind] += 1
        is_out = breaker.record_failure(attempt, kind, weight, now, row)
        if not is_out and weight >= _LIGHT:
            self._questions.suspect(endpoint, kind, now)
        records.say(endpoint, "bad", kind, weight)
        if is_out:
            records.say(endpoint, "out", kind, breaker.trial_at - now)

    @staticmethod
    def _weight(endpoint: Member, attempt: Attempt | None, kind: Kind) -> tuple[float, int | None]:
        """Return a failure's weight, and the streak that opens the breaker (None: default)."""
        if kind is Kind.RETRIED:
            return RETRIED, None
        if kind is Kind.DENIED:  # earlier denials have not been counted yet
            return max(1.0, float(endpoint.denied.row)), None
        if kind in _FLAWS:
            habit = endpoint.dull if kind in DULL else endpoint.useless
            return max(1.0, float(habit.row)), None
        if kind not in (Kind.ERROR, Kind.EVENT):
            return 1.0, None
        weight = 1.0
        if attempt is not None and endpoint.breaker.recent.good >= 1.0:
            # Small if an endpoint that answers others fails the heaviest requests: 1 up to the
            # median size of recent good requests, falling to a tenth beyond the largest.
            times = endpoint.family.times[attempt.stream]
            weight = max(_LIGHTEST, min(1.0, 2.0 * times.lightness(attempt.tokens)))
        if kind is Kind.ERROR:
            return weight, None
        endpoint.doubt()
        usual = endpoint.breaker.rules.settings.consecutive_failures
        others_do = any(other.doubted for other in endpoint.others())
        return weight, None if others_do else min(usual, _EVENTS_IN_ROW)

    def _denied_alone(
        self, endpoint: Member, attempt: Attempt | None, reply: Reply | None, now: float
    ) -> bool:
        """Return whether only this endpoint denies access; if not, the client's key may be bad."""
        breaker = endpoint.breaker
        endpoint.denied.note(now, happened=True)
        if (
            reply is not None
            and reply.status != 404
            and now - endpoint.admitted_at < _ADMITS_STILL_S
            and endpoint.admitted_at >= endpoint.denied.row_at
        ):
            return False  # it has accepted a probe since, so it requires no key
        self._records.mark(endpoint)
        apart = stands_out(endpoint.denied, (other.denied for other in endpoint.others()), now)
        if apart:
            return True
        self._hear_siblings(endpoint, apart, now)
        if attempt is not None and attempt is breaker.trial and breaker.kind is Kind.DENIED:
            # Siblings deny access too: it is the client's fault.
            breaker.record_success(attempt, now)
        else:
            self._questions.suspect(endpoint, Kind.DENIED, now)
        return False

    # -- refusals for load ---------------------------------------------------------------------

    def _full(
        self, endpoint: Member, attempt: Attempt | None, reply: Reply | None, now: float
    ) -> None:
        """Record that the endpoint is full, which is not a failure."""
        breaker = endpoint.breaker
        endpoint.failures[Kind.FULL] += 1
        endpoint.refusals -= 1.0
        endpoint.refused_at = now
        retry_after_s = reply.retry_after_s if reply else None
        if retry_after_s is None and attempt is None:  # Envoy's own choice: nothing to learn
            return
        if retry_after_s is None and attempt is not None and attempt.ahead:
            breaker.record_overload(attempt, now)
            return
        breaker.record_full(attempt, retry_after_s, now)
        self._records.say(endpoint, "full", Kind.FULL, breaker.full_until - now)

    def refused(self, endpoint: Member, count: float, now: float) -> None:
        """Record `count` load refusals reported by an endpoint's metrics.

        Envoy does not report why an attempt failed. So `count` of the attempts recorded as
        failures, or not reported yet, were in fact refusals.
        """
        if now - endpoint.refused_at > _REFUSALS_S:
            endpoint.refusals = 0.0
        endpoint.refusals = min(_MOST_REFUSALS, endpoint.refusals + count)
        endpoint.refused_at = now
        retried = endpoint.retried
        while retried and retried[-1][0] > now - _REFUSALS_S and endpoint.refusals >= 1.0:
            _, attempt = retried.pop()
            endpoint.refusals -= 1.0
            endpoint.breaker.excuse(RETRIED, now)
            if attempt is not None and attempt.ahead:
                endpoint.breaker.record_overload(attempt, now)
        self._records.mark(endpoint)
