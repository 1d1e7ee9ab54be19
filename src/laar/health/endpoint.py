"""What is remembered of one endpoint."""

from __future__ import annotations

from collections import Counter, deque

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import Breaker
from laar.health.kinds import Kind
from laar.health.pace import SlotPace
from laar.health.siblings import Share

__all__ = ["Endpoint"]

_CONTRAST_HALF_LIFE_S = 60.0
_FIRST_READS = 3
"""Answers of a newcomer that are read: one that is wrong by its settings is wrong at once."""
_OVERTAKING = 3


class Endpoint:
    """The record of one slot; `laar.health.health` writes it."""

    __slots__ = (
        "attempts",
        "breaker",
        "cut",
        "denied",
        "failures",
        "model",
        "pace",
        "progress_at",
        "quick",
        "read_at",
        "sent_at",
        "speed",
        "unseen",
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.breaker = Breaker()
        self.attempts: dict[Attempt, None] = {}
        """In flight, in the order they were sent."""
        self.speed = SlotPace()
        self.pace = 1.0
        self.denied = Share(_CONTRAST_HALF_LIFE_S)
        self.cut = Share(_CONTRAST_HALF_LIFE_S)
        self.unseen = _FIRST_READS
        self.read_at = float("-inf")
        self.quick = 0
        self.failures: Counter[Kind] = Counter()
        # When something last got so far, by stage, and when the last few of these had been sent.
        self.progress_at = [float("-inf")] * len(Stage)
        self.sent_at: tuple[deque[float], ...] = tuple(deque(maxlen=_OVERTAKING) for _ in Stage)

    def reached(self, attempt: Attempt, stage: Stage, now: float) -> None:
        """Notes that an attempt got so far."""
        attempt.stage = stage
        self.progress_at[stage] = now
        self.sent_at[stage].append(attempt.at)

    def last_progress_at(self, waiting_for: Stage) -> float:
        """When it last got something as far as that, or was at least generating."""
        return max(self.progress_at[min(waiting_for, Stage.ANSWERING) :])

    def overtook(self, since: float, waiting_for: Stage) -> int:
        """How many requests sent after a moment it got as far as that, a few at most."""
        return max(
            sum(at > since for at in self.sent_at[stage])
            for stage in range(min(waiting_for, Stage.ANSWERING), len(Stage))
        )
