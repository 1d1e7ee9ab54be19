"""The record of one endpoint."""

from __future__ import annotations

from collections import Counter, deque

from laar.health.attempt import Attempt, Stage
from laar.health.blame import PROVED_S
from laar.health.breaker import Breaker
from laar.health.kinds import Kind
from laar.health.pace import SlotPace
from laar.health.siblings import Share

_CONTRAST_HALF_LIFE_S = 60.0
_FIRST_READS = 3
"""Answers of a newcomer that are read: one that is wrong by its settings is wrong at once."""
_FAULTS = {
    Kind.EMPTY: "answers are empty",
    Kind.TYPE: "answers are no JSON or events: {}",
    Kind.UNREADABLE: "answers can't be read",
    Kind.MODEL: "answers name another model: {}",
}
_OVERTAKING = 3
_RETRIED = 64
_ADMITS_S = 60.0
"""Time for which an endpoint that accepted a request without a key counts as accepting them."""
_ADMITS_STILL_S = 5.0


class Endpoint:
    """The record of one slot; `laar.health.health` writes it."""

    __slots__ = (
        "admitted_at",
        "attempts",
        "bail",
        "breaker",
        "cut",
        "denied",
        "failures",
        "flaw",
        "model",
        "named",
        "pace",
        "progress_at",
        "proved_at",
        "quick",
        "read_at",
        "refusals",
        "refused_at",
        "retried",
        "sent_at",
        "speed",
        "unseen",
        "useless",
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.breaker = Breaker()
        self.attempts: dict[Attempt, None] = {}
        """Attempts in flight, in the order they were sent."""
        self.speed = SlotPace()
        self.pace = 1.0
        self.denied = Share(_CONTRAST_HALF_LIFE_S)
        self.cut = Share(_CONTRAST_HALF_LIFE_S)
        self.useless = Share(_CONTRAST_HALF_LIFE_S)
        """Answers that were read, or known by their heads, and were of no use to the client."""
        self.flaw = ""
        """What the last of these had in place of an answer, as a word: a content type."""
        self.named: str | None = None
        """Its answers' name for the model: empty for one that was requested, None while unknown."""
        self.unseen = _FIRST_READS
        self.read_at = float("-inf")
        self.quick = 0
        self.admitted_at = float("-inf")
        """Time at which it last accepted a question of the picker's, which has no key."""
        self.proved_at = float("-inf")
        """Time at which it last answered a client."""
        self.bail = 0.0
        """Weight of the failures that count until it proves that it answers others."""
        self.refusals = 0.0
        """Refusals for load that its metrics page has counted and no attempt explains yet."""
        self.refused_at = float("-inf")
        self.retried: deque[Attempt | None] = deque(maxlen=_RETRIED)
        """The latest attempts that Envoy went on from and that count as failures."""
        self.failures: Counter[Kind] = Counter()
        # Time of the last attempt to reach each stage; when the last few of these had been sent,
        # and the time they took.
        self.progress_at = [float("-inf")] * len(Stage)
        self.sent_at: tuple[deque[tuple[float, float]], ...] = tuple(
            deque(maxlen=_OVERTAKING) for _ in Stage
        )

    def is_full(self, now: float) -> bool:
        """Whether it has as many requests in flight as it takes."""
        return self.breaker.full_until > now or len(self.attempts) >= self.breaker.limit(now)

    def is_proved(self, now: float) -> bool:
        """Whether it has answered a client, or a question of the picker's, a moment ago."""
        return now - max(self.proved_at, self.admitted_at) <= PROVED_S

    @property
    def fault(self) -> str:
        """The kind of its last failure, in words for people."""
        kind = self.breaker.kind
        words = _FAULTS.get(kind, str(kind))
        return words.format(self.flaw) if self.flaw else words.partition(":")[0]

    def admits(self, now: float) -> bool:
        """Whether it accepts requests without a key, as far as is known."""
        return now - self.admitted_at < _ADMITS_S and self.denied.last_at < self.admitted_at

    def admits_still(self, now: float) -> bool:
        """The same while it denies clients one after the other."""
        return now - self.admitted_at < _ADMITS_STILL_S and self.admitted_at >= self.denied.row_at

    def reached(self, attempt: Attempt, stage: Stage, now: float) -> None:
        """Notes that an attempt got so far."""
        attempt.stage = stage
        self.progress_at[stage] = now
        self.sent_at[stage].append((attempt.at, now - attempt.at))

    def last_progress_at(self, waiting_for: Stage) -> float:
        """The time at which it last brought a request that far, or was at least generating."""
        return max(self.progress_at[min(waiting_for, Stage.ANSWERING) :])

    def overtook(self, since: float, waiting_for: Stage, most_s: float) -> int:
        """How many requests sent after a moment it got as far as that in time, a few at most."""
        return max(
            sum(at > since and took_s <= most_s for at, took_s in self.sent_at[stage])
            for stage in range(waiting_for, len(Stage))
        )
