"""Outcomes reported for decisions: which are used, and what a retry implies.

A report refers to a decision and is used once, while the decision is remembered. Repetitions and
contradictions change nothing (the first report stands); each is counted, so that a faulty client
can be found. A report that is used is still subject to the hourly cap of `OnlineOutcomes`.

A retry shows that the previous answer was wrong. Used alone it would bias the estimate: no client
retries a correct answer, so only failures would ever be seen, and the model that is used most would
drop most. So a chain of retries is used only when an outcome is reported for its end: then every
earlier attempt failed. A client that checks its answers therefore reports once per question, about
the last attempt; reporting each attempt changes nothing, since each is used once; a client that
only retries contributes no outcomes. An attempt that an endpoint refused or aborted is no evidence
about its model, since there was no answer that could be wrong.

Attempts are chained without a session: a retry is the same request (compared by a fingerprint of
samples), with the list of tried models that the earlier attempt's answer gave. If two clients send
the same request and neither has reported, a retry is chained to neither.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple

from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes

MAX_PENDING = 50_000
"""Maximum number of decisions remembered (30 MB): minutes at 100 per second; drops the oldest."""


class Verdict(StrEnum):
    """How a report on a decision was handled: used, or why not."""

    TAKEN = "taken"
    LIMITED = "limited"
    UNKNOWN = "unknown"
    REPEATED = "repeated"
    CONTRADICTORY = "contradictory"
    PASSED = "passed"
    """Passed on: another picker decided, and handles the report."""
    UNANSWERED = "unanswered"
    """The endpoint refused the request, or none was reached: there is no answer to judge."""


class Answered(NamedTuple):
    """A judged answer, in the context of its question.

    Args:
        policy: the policy that chose the model.
        attempts: number of attempts on the question, including this one.
        seconds: time from the first attempt's decision to the end of this answer; None if one of
            the attempts is forgotten, or this one's end was not seen.
    """

    policy: str
    task: str
    correct: bool
    attempts: int
    seconds: float | None


_MOST_ALIKE = 8
"""Number of attempts remembered per request and list of tried models; a retry may follow any."""

_Link = tuple[Hashable, tuple[str, ...]]
"""A request, and the models tried on it."""


@dataclass(slots=True)
class _Decision:
    model: str
    features: Features
    tried: tuple[str, ...]
    previous: str | None
    link: _Link | None  # identifies a retry of this attempt
    tenant: str
    policy: str
    adapter: str
    reproducible: bool
    at_s: float
    latency_s: float | None = None
    correct: bool | None = None
    answered: bool = True
    refused: bool = False


class OutcomeReports:
    """Remembers decisions until their outcomes arrive."""

    def __init__(self, online: OnlineOutcomes) -> None:
        self.on_answered: Callable[[Answered], None] = lambda _answered: None
        self.on_verdict: Callable[[str, bool], None] = lambda _decision_id, _correct: None
        """Called once with each verdict on a decision, reported or implied by a retry."""
        self.pass_on: Callable[[str, bool], bool] = lambda *_report: False
        """Forwards a report on an unknown decision to its picker; False if there is none."""
        self._online = online
        self._decisions: dict[str, _Decision] = {}
        self._of: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        """The ids of each tenant's decisions, the oldest first; a `Shared` takes three calls."""
        self._most: list[tuple[int, str]] = []
        """A heap of tenants by the negative number of their decisions; old numbers remain."""
        self._latest: dict[_Link, list[str]] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.retries: Counter[Verdict] = Counter()
        """How the failures implied by retries were handled."""

    def __len__(self) -> int:
        return len(self._decisions)

    def decided(
        self,
        decision_id: str,
        model: str,
        features: Features,
        tried: Sequence[str],
        *,
        request: Hashable = None,
        tenant: str = "",
        policy: str = "",
        now: float = 0.0,
        adapter: str = "",
        reproducible: bool = False,
    ) -> None:
        """Remember a decision, so that its outcome can be reported.

        Args:
            decision_id: the decision's id, as sent in the answer's headers.
            model: the chosen model.
            features: features of the request.
            tried: models that have failed on the request, as the client reports.
            request: key shared by a request and its retries; None if retries can't be recognized.
            tenant: tenant of the request.
            policy: the policy that decided.
            now: seconds, monotonic.
            adapter: the requested LoRA adapter of the model. Outcomes belong to the adapter; its
                failures are no evidence about the model.
            reproducible: answers to the request do not vary.
        """
        known = tuple(tried)
        previous = link = None
        if request is not None:
            previous = self._followed((request, known)) if known else None
            link = (request, (*known, model))
            self._link(link, decision_id)
        self._decisions[decision_id] = _Decision(
            model, features, known, previous, link, tenant, policy, adapter, reproducible, now
        )
        own = self._of[tenant]
        own[decision_id] = None
        heappush(self._most, (-len(own), tenant))
        if len(self._decisions) > MAX_PENDING:
            self._make_room()

    def moved(self, decision_id: str, model: str) -> None:
        """Record that a model other than the chosen one answered: Envoy retried on its own."""
        decision = self._decisions.get(decision_id)
        if decision is None or decision.model == model:
            return
        self._unlink(decision_id, decision)
        decision.model = model
        if decision.link is not None:
            decision.link = (decision.link[0], (*decision.tried, model))
            self._link(decision.link, decision_id)

    def ended(self, decision_id: str, latency_s: float) -> None:
        """Record the end of an answer, `latency_s` seconds after the decision."""
        decision = self._decisions.get(decision_id)
        if decision is not None:
            decision.latency_s = latency_s

    def failed(self, decision_id: str, *, refused: bool) -> None:
        """Record that no answer was completed, so that a retry does not mean it was wrong.

        `refused` means that there was no answer at all, so outcome reports are rejected.
        """
        decision = self._decisions.get(decision_id)
        if decision is not None:
            decision.answered, decision.refused = False, refused

    def outcome_of(self, decision_id: str) -> bool | None:
        """Return the outcome reported for a decision; None if there is none or it is forgotten."""
        decision = self._decisions.get(decision_id)
        return None if decision is None else decision.correct

    def knows(self, decision_id: str) -> bool:
        """Return whether a decision is remembered here."""
        return decision_id in self._decisions

    def report(self, decision_id: str, correct: bool, now: float) -> Verdict:
        """Record a verdict on a decision's answer, and what it implies for earlier attempts."""
        verdict = self._judge(decision_id, correct, now)
        if verdict is Verdict.UNKNOWN and self.pass_on(decision_id, correct):
            verdict = Verdict.PASSED
        self.verdicts[verdict] += 1
        decision = self._decisions.get(decision_id)
        if decision is not None and verdict in (Verdict.TAKEN, Verdict.LIMITED):
            self.on_answered(self._answered(decision, correct))
        while decision is not None and decision.previous is not None:
            earlier = self._decisions.get(decision.previous)
            if earlier is None or earlier.correct is not None:
                break  # earlier attempts got their verdicts together with it
            if earlier.answered:
                self.retries[self._judge(decision.previous, False, now)] += 1
            decision = earlier
        return verdict

    def _answered(self, decision: _Decision, correct: bool) -> Answered:
        attempts = len(decision.tried) + 1
        *_, first = decision, *self._before(decision)
        seconds = None
        if decision.latency_s is not None and not first.tried:
            seconds = decision.at_s + decision.latency_s - first.at_s
        return Answered(decision.policy, decision.features.task, correct, attempts, seconds)

    def _before(self, decision: _Decision) -> Iterator[_Decision]:
        """Yield the earlier attempts, the latest first, while they are remembered."""
        for _ in decision.tried:
            earlier = self._decisions.get(decision.previous or "")
            if earlier is None:
                return
            yield earlier
            decision = earlier

    def _wrong(self, decision: _Decision) -> list[str]:
        """Return the models that gave a wrong answer before, excluding those that gave none.

        Otherwise a model would look too good while another is down, as if it had been right when
        the other was wrong.
        """
        wrong = list(decision.tried)
        for earlier in self._before(decision):
            if not earlier.answered and earlier.model in wrong:
                wrong.remove(earlier.model)
        return wrong

    def _judge(self, decision_id: str, correct: bool, now: float) -> Verdict:
        decision = self._decisions.get(decision_id)
        if decision is None:
            return Verdict.UNKNOWN
        if decision.refused:
            return Verdict.UNANSWERED
        if decision.correct is not None:
            return Verdict.REPEATED if decision.correct == correct else Verdict.CONTRADICTORY
        decision.correct = correct
        self.on_verdict(decision_id, correct)
        taken = self._online.observe(
            decision.adapter or decision.model,
            decision.features,
            correct,
            now,
            tried=() if decision.adapter else self._wrong(decision),
            reproducible=decision.reproducible,
            tenant=decision.tenant,
        )
        return Verdict.TAKEN if taken else Verdict.LIMITED

    def _make_room(self) -> None:
        """Forget the oldest decision of the tenant with most."""
        if len(self._most) > 2 * MAX_PENDING:
            self._most = sorted((-len(own), tenant) for tenant, own in self._of.items())
        number, tenant = heappop(self._most)
        while (own := self._of.get(tenant)) is None or len(own) != -number:
            number, tenant = heappop(self._most)
        oldest, _ = own.popitem(last=False)
        self._unlink(oldest, self._decisions.pop(oldest))
        heappush(self._most, (-len(own), tenant))
        if not own:
            del self._of[tenant]

    def _unlink(self, decision_id: str, decision: _Decision) -> None:
        link = decision.link
        if link is None or decision_id not in (alike := self._latest.get(link, [])):
            return
        alike.remove(decision_id)
        if not alike:
            del self._latest[link]

    def _link(self, link: _Link, decision_id: str) -> None:
        alike = self._latest.setdefault(link, [])
        alike.append(decision_id)
        del alike[:-_MOST_ALIKE]

    def _followed(self, link: _Link) -> str | None:
        """Return the attempt that a retry follows; None if it may be one of several."""
        alike = self._latest.get(link, ())
        open_ones = [id_ for id_ in alike if self._decisions[id_].correct is None]
        if len(open_ones) > 1 or not alike:
            return None
        return open_ones[0] if open_ones else alike[-1]
