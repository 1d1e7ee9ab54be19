"""The records of one endpoint, of its attempts, and of the endpoints with the same model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from laar.health.breaker import Breaker, Rules
from laar.health.explained import Explained
from laar.health.kinds import Kind
from laar.health.recent import Habit
from laar.health.times import GroupTimes
from laar.latest import Latest

PROVED_S = 5.0
"""Seconds for which a good answer proves an endpoint healthy. A failure that may be the request's
fault triggers a probe, at most once a second, so a healthy endpoint soon has proof."""

_FIRST_READS = 3
"""Number of answers of a new endpoint that are read: wrong settings show in the first few."""
_TRUST_AFTER = 4
"""After an error in an answer, the number of answers that must be read and found good before unread
answers are considered good again."""
_CONTESTED_S = 5.0
_FAULTS = {
    Kind.STATUS: "answers 502, 503 or 504",
    Kind.ERROR: "answers 500",
    Kind.EVENT: "answers end in an error",
    Kind.DENIED: "denies what its siblings accept (401 to 404)",
    Kind.REJECTED: "rejects what its siblings answer (400, 422 and the like)",
    Kind.SHORT: "answers are only a word, unlike its siblings'",
    Kind.REPEATED: "answers different prompts alike, or with one token, unlike its siblings",
    Kind.CUT: "answers are cut off",
    Kind.HANG: "does not answer in time",
    Kind.RETRIED: "fails before it answers",
    Kind.EMPTY: "answers are empty",
    Kind.TYPE: "answers are neither JSON nor events: {}",
    Kind.UNREADABLE: "answers can't be read",
    Kind.MODEL: "answers name another model: {}",
}
_MAX_NAMES = 64  # models remembered per endpoint: adapters come and go while an engine runs
_SAID = 32
_OVERTAKING = 3
_RETRIED = 64
_OVER = 256
_ADMITS_S = 60.0
"""Seconds for which an endpoint that accepted a probe is assumed to need no client's key."""


class Stage(IntEnum):
    """How far an attempt has progressed; each stage has its own typical time."""

    SENT = 0
    ACCEPTED = 1
    ANSWERING = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class Attempt:
    """The record of one request at one endpoint, from its decision to its end.

    Args:
        stream: the answer is streamed; attempts are compared only with others of the same kind.
        predicted_s: expected seconds to its first token.
        rtt_s: the round trip, since a distant endpoint is not a slow one.
        ahead: requests in flight at its endpoint when it was sent.
        timed: whether it is known when the endpoint received the request.
        name: the model name that the endpoint received.
        tenant: the tenant of its request.
        read: the body of its answer is read.
        stage: how far it has progressed.
        progress_at: when more of its answer last arrived.
        good: it is considered good, at least so far.
        judged: its outcome has been counted.
        overdue: it was silent for too long.
        blamed: that was counted as a failure.
        doubted_at: when its last silence was noticed.
        digest: hash of the request's body; 0 if it is not known.
        repeated_at: where Envoy repeats it, if anywhere.
    """

    endpoint: Member
    stream: bool
    at: float
    predicted_s: float
    tokens: float
    rtt_s: float
    ahead: int = 0
    timed: bool = True
    name: str = ""
    tenant: str = ""
    read: bool = False
    stage: Stage = Stage.SENT
    progress_at: float = 0.0
    good: bool = False
    judged: bool = False
    useless: bool = False
    overdue: bool = False
    blamed: bool = False
    doubted_at: float = 0.0
    digest: int = 0
    repeated_at: tuple[str, ...] = ()

    @property
    def is_followed(self) -> bool:
        """Whether its answer has begun, and its progress can be seen."""
        return self.read and self.stage is Stage.ANSWERING

    @property
    def is_unread(self) -> bool:
        """Whether it was accepted, and the rest of its answer is not seen."""
        return self.stage is Stage.ACCEPTED and not self.read


class Family:
    """The endpoints with one model: they share clients, so their outcomes can be compared.

    Attributes:
        members: the endpoints, by slot.
        progressed: endpoints that have answered, in the order of their attempts' latest progress.
        times: the typical times, for streamed and for other answers.
        contested_until: time until which all answers are read, for comparison, after an endpoint
            gave a useless one.
    """

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.progressed: dict[Member, None] = {}
        self.times: dict[bool, GroupTimes] = defaultdict(GroupTimes)
        self.contested_until = float("-inf")

    def contest(self, now: float) -> None:
        """Read all endpoints' answers for a while, for comparison."""
        self.contested_until = now + _CONTESTED_S


class Member:
    """The record of one slot; written only in `laar.health`."""

    def __init__(self, slot: int, model: str, family: Family, rules: Rules) -> None:
        self.slot = slot
        self.model = model
        self.family = family
        self.breaker = Breaker(rules)
        self.attempts: dict[Attempt, None] = {}
        """Attempts in flight, in the order they were sent."""
        self.denied = Habit()
        self.in_a_row: Latest[str, int] = Latest(_MAX_NAMES)
        """Consecutive failures by model; for the main model, only 4xx, since one means little."""
        self.cut = Habit()
        self.useless = Habit()
        """Useless answers among those read, or recognized by their headers."""
        self.dull = Habit()
        """Short and repeated answers among those read."""
        self.explained = Explained()
        self.said: Latest[int, int] = Latest(_SAID)
        """Digests of the prompts of the latest answers that were read, by the answers' digests."""
        self.heard_at, self.unheard_s = float("-inf"), 0.0
        """When it was last paused to hear its siblings, and how long not to pause it again."""
        self.flaw = ""
        """What was wrong with the last useless answer: its content type, or the model it named."""
        self.named: str | None = None
        """Model name in its answers; empty if it is the requested name, None while unknown."""
        self.to_read = _FIRST_READS
        """How many of the endpoint's next answers to read."""
        self.doubted = False
        """Unread answers do not count as good until some have been read and found good."""
        self.read_at = float("-inf")
        self.proved_at: dict[str, float] = {}
        """Time at which it last answered a client or a probe, by model."""
        self.admitted_at = float("-inf")
        """Time at which it last accepted a probe, which has no client's key."""
        self.disputed = 0.0
        """Weight of the failures to retract once it proves that it answers other requests."""
        self.refusals = 0.0
        """Load refusals counted by its metrics page that no attempt explains yet."""
        self.refused_at = float("-inf")
        self.kv_usage = math.nan
        """Share of the KV cache in use, by its metrics page."""
        self.worked_at = float("-inf")
        """When `kv_usage` last changed: its engine computed something."""
        self.streamed_at = float("-inf")
        """When an answer that is read last continued."""
        self.retried: deque[tuple[float, Attempt | None]] = deque(maxlen=_RETRIED)
        """When the latest attempts that Envoy retried elsewhere were recorded as failures."""
        self.failures: Counter[Kind] = Counter()
        self.looked_after_at = float("-inf")
        self.alive_at = float("-inf")
        """When it last answered anything."""
        self.is_gone = False
        """It refused connections, or has restarted, and has not answered since."""
        self.over: deque[tuple[int, float, bool]] = deque(maxlen=_OVER)
        """The last requests that ended here: their bodies, when, and whether that was good."""
        # By stage: when an attempt last reached it, and when the last few that reached it were
        # sent, and how long they took.
        self.progress_at = [float("-inf")] * len(Stage)
        self.sent_at: tuple[deque[tuple[float, float]], ...] = tuple(
            deque(maxlen=_OVERTAKING) for _ in Stage
        )

    def others(self) -> Iterator[Member]:
        """Yield the other endpoints with the same model."""
        return (other for other in self.family.members.values() if other is not self)

    def is_full(self, now: float) -> bool:
        """Return whether it has as many requests in flight as it accepts, or is paused."""
        return self.breaker.full_until > now or len(self.attempts) >= self.breaker.limit(now)

    @property
    def fault(self) -> str:
        """The kind of its last failure, in words."""
        kind = self.breaker.kind
        words = _FAULTS.get(kind, str(kind))
        return words.format(self.flaw) if self.flaw else words.partition(":")[0]

    # -- its answers ---------------------------------------------------------------------------

    def doubt(self) -> None:
        """Stop counting unread answers as good until some have been read and found good."""
        if not self.doubted:
            self.breaker.recent.good = 0.0  # they may have been errors that went unseen
        self.to_read, self.doubted = _TRUST_AFTER, True

    def prove(self, now: float, name: str) -> None:
        """Record a good answer; retract failures that were the fault of requests or models."""
        if len(self.proved_at) >= _MAX_NAMES and name not in self.proved_at:
            del self.proved_at[min(self.proved_at, key=self.proved_at.__getitem__)]
        self.proved_at[name] = self.alive_at = now
        self.is_gone = False
        if self.disputed and name not in self.in_a_row:
            self.breaker.excuse(self.disputed, now)
            self.disputed = 0.0

    def is_proved(self, now: float, but: str = "") -> bool:
        """Return whether it has just answered a client or a probe, for any model except `but`."""
        return any(now - at <= PROVED_S and name != but for name, at in self.proved_at.items())

    def admits(self, now: float) -> bool:
        """Return whether it is known to accept requests without a client's key."""
        return now - self.admitted_at < _ADMITS_S and self.denied.last_at < self.admitted_at

    # -- the progress of its attempts ------------------------------------------------------------

    def reached(self, attempt: Attempt, stage: Stage, now: float) -> None:
        """Record that an attempt reached a stage."""
        attempt.stage = stage
        self.progress_at[stage] = now
        self.family.progressed.pop(self, None)
        self.family.progressed[self] = None
        self.sent_at[stage].append((attempt.at, now - attempt.at))

    def overtook(self, since: float, waiting_for: Stage, most_s: float) -> int:
        """Count the last few requests sent after `since` that reached the stage within `most_s`."""
        return max(
            sum(at > since and took_s <= most_s for at, took_s in self.sent_at[stage])
            for stage in range(waiting_for, len(Stage))
        )
