"""Health: P(answers), and the exclusion of endpoints, learned from outcomes.

There is one object per fleet. Records are kept by endpoint slot and model name; time is an
argument. While nothing is wrong, it costs one record per request and nothing per decision: only
endpoints that stand out are examined (`Records.outliers`).

An endpoint is excluded while its breaker is open. Three bounds limit the damage of a mistake: at
most `MAX_OUT_SHARE` of the candidates are excluded, and the others stay, at a higher price; if all
would be excluded, none are, so that clients see the engines' own errors; and excluded endpoints
are tried again, one request at a time.

That share does not apply to endpoints that have only failed. Whatever their price, they would have
no requests in flight, so they would win as the healthy endpoints fill up: with four out of five
refusing immediately and one of the four kept, 98 % of the requests failed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from laar.health.breaker import OTHERS_TRIAL_S, OVERDUE_S, HealthSettings, Rules, State, Word
from laar.health.endpoint import Attempt, Member, Stage
from laar.health.explained import Shown
from laar.health.kinds import FAILURES, GOOD, Kind, Reply, judge
from laar.health.lateness import is_spoiled
from laar.health.outcomes import Outcomes
from laar.health.questions import Questions
from laar.health.records import Records
from laar.health.requests import NOTHING, Asked
from laar.health.silence import find_hang, is_clients, silence_s
from laar.health.standing import Standing
from laar.health.suspects import Suspects

_LOOK_S = 0.25
_LOOKS = 500  # attempts checked at once, which takes up to 2 ms
_READ_EVERY_S = 2.0
"""Seconds after which another answer of a healthy endpoint is read."""
_MOST_SEEN = 4096
FEW = 2
"""Good answers, beyond the failures, that speak for a body at once; fewer do once it is seen that
the engines live on."""


class Health:
    """Learns from attempts which endpoints answer.

    Attributes:
        records: what is known about each endpoint; read only.
        questions: the picker's probes of endpoints, and their results.
        suspects: what failing attempts have in common besides their endpoint.
        look_at: when `look` must next be called.
        reads: whether answers may be read.
        culprits: traits of failing requests; if not empty, the traits of all requests are recorded.
        refused: endpoints' latest requests; if not empty, all requests are compared with them.
    """

    def __init__(self, settings: HealthSettings, *, rng: random.Random) -> None:
        self.records = Records(Rules(settings, rng))
        self.questions = Questions(self.records)
        self.suspects = Suspects()
        self._outcomes = Outcomes(self.records, self.questions)
        self._endpoints = self.records.endpoints
        self.look_at = 0.0
        self.seen: dict[int, tuple[int, int, float, bool]] = {}
        """For the latest bodies, by digest: the good answers, the slot of the last answer if nobody
        saw how it ended, else -1, its time, and whether some engine has answered."""
        self.unanswered = self.records.unanswered
        self._unseen: list[tuple[Member, Iterator[Attempt]]] = []
        self.reads = True
        self.culprits: Collection[int] = self.records.blame.known
        self.refused: Collection[object] = self.records.refusals.seen

    @property
    def settings(self) -> HealthSettings:
        """The thresholds."""
        return self.records.rules.settings

    @settings.setter
    def settings(self, settings: HealthSettings) -> None:
        self.records.rules.settings = settings
        self.records.version += 1

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self.records.drop(slot)
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
        name: str = "",
        tenant: str = "",
        digest: int = 0,
        repeated_at: tuple[str, ...] = (),
    ) -> Attempt:
        """Begin an attempt: a request for `name` (empty means `model`) is being sent to a slot."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None or endpoint.model != model:
            endpoint = self.records.of(slot, model, now)
        ahead, name = len(endpoint.attempts), name or model
        attempt = Attempt(
            endpoint, stream, now, predicted_s, tokens, rtt_s, ahead, timed, name, tenant
        )
        endpoint.attempts[attempt] = None
        if digest:
            attempt.digest, attempt.repeated_at = digest, repeated_at
            if not self.seen.get(digest, (0, 0, 0, False))[3]:
                self.unanswered.setdefault(digest, attempt)
        if trial:
            endpoint.breaker.begin_trial(attempt)
            self.records.version += 1
            self.records.say(endpoint, "trial", endpoint.breaker.kind, OTHERS_TRIAL_S)
        elif slot in self.records.outliers and endpoint.breaker.limit(now) < math.inf:
            self.records.version += 1
        return attempt

    def wants_read(self, attempt: Attempt, now: float, marks: int = 0) -> bool:
        """Return whether to read the answer to an attempt; the caller is assumed to do so.

        `marks` are those of the request, if any is `refused`.
        """
        endpoint, seen = attempt.endpoint, self.seen
        if attempt.digest in seen and seen[attempt.digest][0] < FEW:
            return True  # a repeat: its last answer may have been cut off, unread
        if self.reads and (
            endpoint.to_read
            or now - endpoint.read_at >= _READ_EVERY_S
            or endpoint.breaker.state is not State.CLOSED
            or (attempt.name in endpoint.in_a_row and attempt.name != endpoint.model)
            or (marks and self.records.refusals.doubts(endpoint.model, marks))
            or (
                now <= endpoint.family.contested_until  # until siblings can be compared with it
                and not (endpoint.useless.is_evidence(now) and endpoint.cut.is_evidence(now))
            )
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
        asked: Asked = NOTHING,
    ) -> None:
        """Record the endpoint's reply: its status, or a later error; `read` if the body is read.

        `excused` means that a failure is the request's fault. `asked` is compared with other
        requests if `compares` says so.
        """
        endpoint = attempt.endpoint
        if attempt not in endpoint.attempts or attempt.stage is Stage.OVER:
            return
        attempt.read = read
        verdict: Kind | str | None = GOOD
        if reply.status != 200 or reply.event or reply.found is not None:  # rarely true
            verdict = self.records.judge(endpoint, reply, now)
        is_evidence = True
        if asked is not NOTHING and attempt.stage is Stage.SENT and not reply.event:
            is_evidence = self._outcomes.refused_or_not(endpoint, verdict, asked, now)
        if reply.found is not None:
            if verdict is not None:
                self._outcomes.judged(attempt, verdict, reply, now, asked)
        elif verdict is GOOD:
            if attempt.stage is Stage.SENT:
                self._outcomes.accepted(attempt, now)
        elif reply.event and verdict is None:  # an error that blames the client, after a 200
            self._outcomes.judged(attempt, Kind.REJECTED, reply, now, asked)
        elif verdict is None:
            endpoint.denied.note(now, happened=False)
            self.questions.rejected(endpoint, attempt.name, now)
            endpoint.reached(attempt, Stage.ACCEPTED, now)
            endpoint.breaker.end_trial(attempt, now)
            attempt.judged = True
        else:
            self._outcomes.failed(
                endpoint,
                attempt,
                Kind(verdict),
                now,
                reply,
                excused=excused,
                is_evidence=is_evidence,
            )

    def answering(self, attempt: Attempt, now: float) -> None:
        """Record that an answer has begun or continues; `replied` reports whether it is good."""
        endpoint = attempt.endpoint
        attempt.progress_at = endpoint.streamed_at = now
        if attempt.stage >= Stage.ANSWERING or attempt.judged or attempt not in endpoint.attempts:
            return
        if attempt.timed:
            times = endpoint.family.times[attempt.stream]
            times.saw(Stage.ANSWERING, now - attempt.at, attempt.predicted_s)
        endpoint.reached(attempt, Stage.ANSWERING, now)

    def ended(self, attempt: Attempt, status: int | None, cause: str, now: float) -> None:
        """End an attempt with the values of its `Completion`."""
        if attempt not in attempt.endpoint.attempts:
            return
        if not attempt.judged and attempt.stage is Stage.SENT and status is not None:
            self.replied(attempt, Reply(status=status), now)
        done = cause == "complete" and status is not None and status < 300
        if attempt.stage is not Stage.OVER and not attempt.judged:
            # An abandoned unread answer looks like a complete one.
            if done and not (attempt.overdue and attempt.is_unread):
                self._outcomes.completed(attempt, now)
            elif cause == "reset":
                self._outcomes.cut(attempt, now, NOTHING)
            elif cause == "error":  # the gateway's own: nobody knows whether it was asked
                self.questions.suspect(attempt.endpoint, Kind.HANG, now, excused=True)
                self.records.mark(attempt.endpoint)
            elif (
                not attempt.overdue
                and (silent_s := silence_s(attempt, now))
                and not is_clients(self.records, attempt, silent_s, now)
            ):
                self._outcomes.failed(attempt.endpoint, attempt, Kind.HANG, now)
        if digest := attempt.digest:
            seen = self.seen
            slot = attempt.endpoint.slot if attempt.stream and not attempt.read else -1
            good = attempt.read and done and not attempt.useless
            attempt.endpoint.over.append((digest, now, good))
            survives = done or cause == "hidden"
            if digest in seen:
                known = seen[digest]
                seen[digest] = known[0] + good, slot, now, known[3] or survives
            else:
                seen[digest] = int(good), slot, now, survives
                if len(seen) > _MOST_SEEN:
                    del seen[next(iter(seen))]
        self.gone(attempt, now)

    def shown(self, attempt: Attempt, shown: Shown, prompt: int) -> None:
        """Record what a whole answer shows, and the hash of its prompt."""
        attempt.endpoint.explained.answers.add(shown, prompt)

    def gone(self, attempt: Attempt, now: float) -> None:
        """Drop an attempt: it has ended, or another endpoint serves the request."""
        endpoint = attempt.endpoint
        endpoint.attempts.pop(attempt, None)
        self.unanswered.pop(attempt.digest, None)
        attempt.stage = Stage.OVER
        if endpoint.slot in self.records.outliers:
            endpoint.breaker.end_trial(attempt, now)
            self.records.version += endpoint.breaker.limit(now) < math.inf

    # -- attempts that Envoy retried elsewhere -------------------------------------------------

    def retried(self, asked: Asked, failed: Sequence[int], reply: Reply | None, now: float) -> Kind:
        """Record a request's end; return why its attempts before the last probably failed.

        `Kind.REQUEST` means that the request is at fault rather than any endpoint, even the last.

        Args:
            asked: what other failing requests may share.
            failed: slots of all attempts, including the last one.
            reply: reply to the last attempt; None if there was none.
            now: the current time.
        """
        verdict, blame, traits = (
            None if reply is None else judge(reply),
            self.records.blame,
            asked.traits,
        )
        if verdict is GOOD:
            blame.good(failed[-1], traits, now)
        if verdict is Kind.FULL:
            return Kind.FULL
        if reply is not None and verdict not in FAILURES:
            return Kind.RETRIED
        if reply is not None and reply.event:
            blame.good(failed[-1], traits, now, count=-1.0)  # its status was counted as good
        known = {slot: self._endpoints.get(slot) for slot in failed}
        proved = [slot for slot, of in known.items() if of is not None and of.is_proved(now)]
        if proved:
            blame.bad(proved, traits, asked.tenant, now)
        if len(known) > 1 or blame.is_culprit(traits, now):
            return Kind.REQUEST
        return Kind.RETRIED

    def passed_over(
        self, slot: int, now: float, attempt: Attempt | None = None, kind: Kind = Kind.RETRIED
    ) -> None:
        """Record a failed attempt by Envoy; `attempt` if the picker chose this endpoint."""
        if (endpoint := self._endpoints.get(slot)) is None:
            return
        excused = kind is Kind.REQUEST
        kind = Kind.RETRIED if excused else kind
        self._outcomes.failed(endpoint, attempt, kind, now, excused=excused)
        if attempt is not None:
            if attempt.digest:
                endpoint.over.append((attempt.digest, now, False))
            self.gone(attempt, now)

    def died(self, slot: int, now: float) -> None:
        """Record that an endpoint refuses connections, or has restarted."""
        if (endpoint := self._endpoints.get(slot)) is not None:
            self.records.gone(endpoint, now)

    def read(self, slot: int, kv_usage: float, refused: float, now: float) -> None:
        """Record an endpoint's metrics page: KV cache use, and refusals since the last scrape."""
        if (endpoint := self._endpoints.get(slot)) is None:
            return
        if abs(kv_usage - endpoint.kv_usage) > 0.0:  # false if either is unknown
            endpoint.worked_at = now
        endpoint.kv_usage, endpoint.alive_at = kv_usage, now
        if refused:
            self._outcomes.refused(endpoint, refused, now)

    # -- several pickers -----------------------------------------------------------------------

    def heard(self, slot: int, model: str, word: Word, now: float) -> None:
        """Apply another picker's message about an endpoint that serves `model`.

        Silent endpoints are detected by each picker from its own requests.
        """
        endpoint = self.records.of(slot, model, now)
        endpoint.breaker.hear(word, now)
        self.records.mark(endpoint)

    # -- periodic checks -----------------------------------------------------------------------

    def look(self, now: float, late_s: float = 0.0) -> None:
        """Find endpoints that have become silent; call it once `look_at` has passed.

        Thousands of attempts take several calls. If the picker is late, it has yet to read what
        they have said.
        """
        self.look_at = now + _LOOK_S
        if not self.settings.enabled or is_spoiled(OVERDUE_S, late_s):
            return
        unseen, left = self._unseen, _LOOKS
        if not unseen:
            known = self._endpoints.values()
            unseen += ((each, iter(list(each.attempts))) for each in known if each.attempts)
        while unseen and left > 0:
            endpoint, attempts = unseen[-1]
            looked = find_hang(self.records, self.questions, endpoint, islice(attempts, left), now)
            if looked < left:
                unseen.pop()
            left -= looked
        if unseen:
            self.look_at = now

    # -- for decisions -------------------------------------------------------------------------

    def due(self, standing: Standing, now: float) -> int | None:
        """Return a slot whose trial is due now; None if there is none."""
        return next((slot for _, slot in standing.trials if self.is_due(slot, now)), None)

    def is_due(self, slot: int, now: float) -> bool:
        """Return whether a client's request should be the trial of a slot now."""
        endpoint = self._endpoints.get(slot)
        return endpoint is not None and endpoint.breaker.request_due(now)

    def lives(self, slot: int, failed_at: float) -> bool:
        """Return whether a slot gets requests, and has answered since it failed."""
        known = self._endpoints.get(slot)
        if known is None or known.breaker.is_out or known.is_gone:
            return False
        return failed_at == -math.inf or known.alive_at > failed_at

    def fails(self, slot: int, since: float, for_s: float) -> bool:
        """Return whether a slot has lived for so long since some time, without a good answer."""
        known = self._endpoints.get(slot)
        if known is None or known.is_gone or known.alive_at <= since + for_s:
            return False
        return since > max(known.proved_at.values(), default=-math.inf)

    # -- for reports ---------------------------------------------------------------------------

    def state(self, slot: int, now: float) -> str:
        """Return the state of an endpoint in a word or two; empty if it is healthy."""
        known = self._endpoints.get(slot)
        if known is None or slot not in self.records.outliers or not self.settings.enabled:
            return ""
        breaker = known.breaker
        breaker.settle(now)
        if breaker.state is State.OPEN:
            return "failing"
        if breaker.is_out:
            return "on trial"
        if known.is_full(now):
            return "full"
        return "starting" if breaker.state is State.STARTING else ""

    def fault(self, slot: int) -> str:
        """Return in words why an endpoint is excluded; empty if it is not."""
        known = self._endpoints.get(slot)
        return known.fault if known is not None and known.breaker.is_out else ""

    def answers(self, slot: int, now: float) -> float:
        """Return P(answers) of a slot; 1 if nothing is known about it, or if health is disabled."""
        known = self._endpoints.get(slot) if self.settings.enabled else None
        return 1.0 if known is None else known.breaker.answers(now)
