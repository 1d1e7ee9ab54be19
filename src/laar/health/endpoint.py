"""The record of one endpoint, and of the family of those that serve the same model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from laar.health.attempt import Attempt, Stage
from laar.health.breaker import Breaker, Rules
from laar.health.kinds import Kind
from laar.health.pace import GroupTimes, SlotPace
from laar.health.recent import Habit

PROVED_S = 5.0
"""How long a good answer proves an endpoint sound. A failure that may be the request's has the
endpoint asked a question as well, at most once a second: so proof is at hand while it is sound."""

_FIRST_READS = 3
"""Answers of a newcomer that are read: one that is wrong by its settings is wrong at once."""
_TRUST_AFTER = 4
"""Answers read and found good until unread ones count again, after an error inside an answer."""
_CONTESTED_S = 5.0
_FAULTS = {
    Kind.STATUS: "answers 502, 503 or 504",
    Kind.ERROR: "answers 500",
    Kind.EVENT: "answers end in an error",
    Kind.DENIED: "denies what its siblings accept (401, 403, 404)",
    Kind.CUT: "answers are broken off",
    Kind.HANG: "does not answer in time",
    Kind.RETRIED: "fails before it answers",
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


class Family:
    """The endpoints with one model: their clients are the same, so their outcomes are compared.

    Attributes:
        members: the endpoints, by slot.
        times: the usual times, by whether the answer is streamed.
        contested_until: one of them gave a useless answer; until then answers of the others are
            read to compare.
    """

    def __init__(self) -> None:
        self.members: dict[int, Endpoint] = {}
        self.times: dict[bool, GroupTimes] = {}
        self.contested_until = float("-inf")

    def times_of(self, attempt: Attempt) -> GroupTimes:
        """Return the usual times of attempts like this one."""
        times = self.times.get(attempt.stream)
        if times is None:
            times = self.times[attempt.stream] = GroupTimes()
        return times

    @property
    def typical_s(self) -> float:
        """The seconds of a complete answer; 0 while unknown."""
        return max((times.typical_s for times in self.times.values()), default=0.0)

    def contest(self, now: float) -> None:
        """Have the answers of all read for a while, to compare."""
        self.contested_until = now + _CONTESTED_S


class Endpoint:
    """The record of one slot; `laar.health.health` writes it."""

    def __init__(self, slot: int, model: str, family: Family, rules: Rules) -> None:
        self.slot = slot
        self.model = model
        self.family = family
        self.breaker = Breaker(rules)
        self.attempts: dict[Attempt, None] = {}
        """Attempts in flight, in the order they were sent."""
        self.speed = SlotPace()
        self.pace = 1.0
        self.denied = Habit()
        self.cut = Habit()
        self.useless = Habit()
        """Answers that were read, or known by their heads, and were of no use to the client."""
        self.flaw = ""
        """What the last of these had in place of an answer, as a word: a content type."""
        self.named: str | None = None
        """The model's name in its answers: empty for the requested one, None while unknown."""
        self.to_read = _FIRST_READS
        """How many of its next answers are read."""
        self.doubted = False
        """No unread answer counts as good until those were."""
        self.briefs = 0
        """Unread answers in a row that were over so soon that they may be errors."""
        self.read_at = float("-inf")
        self.proved_at = float("-inf")
        """Time at which it last answered a client, or a question of the picker's."""
        self.admitted_at = float("-inf")
        """Time at which it last accepted a question of the picker's, which has no key."""
        self.disputed = 0.0
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

    def others(self) -> Iterator[Endpoint]:
        """Yield the other endpoints with the same model."""
        return (other for other in self.family.members.values() if other is not self)

    def is_full(self, now: float) -> bool:
        """Return whether it has as many requests in flight as it takes."""
        return self.breaker.full_until > now or len(self.attempts) >= self.breaker.limit(now)

    @property
    def fault(self) -> str:
        """The kind of its last failure, in words for people."""
        kind = self.breaker.kind
        words = _FAULTS.get(kind, str(kind))
        return words.format(self.flaw) if self.flaw else words.partition(":")[0]

    # -- its answers ---------------------------------------------------------------------------

    def is_missed(self, now: float) -> bool:
        """Return whether too little was read of it to compare a sibling with."""
        return not (self.useless.is_evidence(now) and self.cut.is_evidence(now))

    def read_good(self) -> None:
        """Note that an answer was read and found good."""
        self.to_read = max(0, self.to_read - 1)
        self.doubted = self.doubted and self.to_read > 0

    def doubt(self) -> None:
        """Let no unread answer count as good until some were read and found good."""
        if not self.doubted:
            self.breaker.forget_successes()
        self.to_read, self.doubted = _TRUST_AFTER, True

    def prove(self, now: float) -> None:
        """Note a good answer, and take back the failures that were their requests' fault."""
        self.proved_at = now
        if self.disputed:
            self.breaker.excuse(self.disputed, now)
            self.disputed = 0.0

    def is_proved(self, now: float) -> bool:
        """Return whether it has answered a client, or a question of the picker's, a moment ago."""
        return now - self.proved_at <= PROVED_S

    def admits(self, now: float) -> bool:
        """Return whether it accepts requests without a key, as far as is known."""
        return now - self.admitted_at < _ADMITS_S and self.denied.last_at < self.admitted_at

    def admits_still(self, now: float) -> bool:
        """Do the same while it denies clients one after the other."""
        return now - self.admitted_at < _ADMITS_STILL_S and self.admitted_at >= self.denied.row_at

    # -- the progress of its attempts ------------------------------------------------------------

    def reached(self, attempt: Attempt, stage: Stage, now: float) -> None:
        """Note that an attempt got so far."""
        attempt.stage = stage
        self.progress_at[stage] = now
        self.sent_at[stage].append((attempt.at, now - attempt.at))

    def last_progress_at(self, waiting_for: Stage) -> float:
        """Return when it last brought a request that far, or was at least generating."""
        return max(self.progress_at[min(waiting_for, Stage.ANSWERING) :])

    def overtook(self, since: float, waiting_for: Stage, most_s: float) -> int:
        """Count the requests sent after a moment that got as far in time, a few at most."""
        return max(
            sum(at > since and took_s <= most_s for at, took_s in self.sent_at[stage])
            for stage in range(waiting_for, len(Stage))
        )
