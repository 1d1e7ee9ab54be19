"""Outcomes reported for decisions: which ones count.

A report names a decision. It counts once, for a decision that is remembered; a repeat changes
nothing, a contradiction of an earlier report changes nothing either (the first stands), and both
are told apart so that a client at fault can be found. What counts then still passes the hourly cap
of `OnlineOutcomes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from laar.accuracy.features import Features
from laar.accuracy.success import SuccessModel

__all__ = ["MAX_PENDING", "OutcomeReports", "Verdict"]

MAX_PENDING = 50_000
"""Decisions remembered, oldest dropped first: minutes at 100 a second, some 25 MB."""


class Verdict(StrEnum):
    """What became of a report."""

    TAKEN = "taken"
    LIMITED = "limited"
    UNKNOWN = "unknown"
    REPEATED = "repeated"
    CONTRADICTORY = "contradictory"


@dataclass(slots=True)
class _Decision:
    model: str
    features: Features
    tried: tuple[str, ...]
    correct: bool | None = None


class OutcomeReports:
    """Remembers decisions until their outcomes arrive."""

    def __init__(self, success: SuccessModel, *, max_pending: int = MAX_PENDING) -> None:
        self._success = success
        self._max_pending = max_pending
        self._decisions: dict[str, _Decision] = {}
        self.verdicts: Counter[Verdict] = Counter()

    def decided(
        self, decision_id: str, model: str, features: Features, tried: Sequence[str]
    ) -> None:
        """Notes a decision that an outcome may be reported for."""
        if len(self._decisions) >= self._max_pending:
            del self._decisions[next(iter(self._decisions))]
        self._decisions[decision_id] = _Decision(model, features, tuple(tried))

    def report(self, decision_id: str, correct: bool, now: float) -> Verdict:
        """Takes a client's word on a decision's answer."""
        verdict = self._judge(decision_id, correct, now)
        self.verdicts[verdict] += 1
        return verdict

    def _judge(self, decision_id: str, correct: bool, now: float) -> Verdict:
        decision = self._decisions.get(decision_id)
        if decision is None:
            return Verdict.UNKNOWN
        if decision.correct is not None:
            return Verdict.REPEATED if decision.correct == correct else Verdict.CONTRADICTORY
        decision.correct = correct
        taken = self._success.observe(
            decision.model, decision.features, decision.tried, correct, now
        )
        return Verdict.TAKEN if taken else Verdict.LIMITED
