"""The proof that reordering pays, by route: a slice is left alone and compared.

A conversation is in the slice by a hash of its first text, with all of its turns and retries. The
documents alone would not do: a few that are asked about most would fall on one side, and their
difficulty would pass for an effect. For the same reason each conversation counts once, by its mean,
however many requests begin alike. The measure is the engine's own: the share of prompt tokens that
its usage reports as cached. Reordering goes off for a route when the gain, with two standard errors
granted, stays below the required one, or when reported answers are worse with it than without; it
stays off until `reset`, since without treated requests nothing new can be learned.

De-duplication begins the other way round: a slice of the conversations has it, and all the others
get it once it saved tokens and outcomes were reported that show no harm. Where no outcomes
are reported it stays a trial, because the harm would not be noticed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

MAX_ROUTES = 256
"""Routes come from the settings; this only keeps a mistake from growing."""


MAX_CONVERSATIONS = 2048
"""Conversations of a mean that may still change, some 0.2 KB each. An older one that goes on counts
as another."""


@dataclass(slots=True)
class MeanOfMeans:
    """Mean over conversations, each by the mean of its values, and its standard error squared."""

    n: int = 0
    _sum: float = 0.0
    _squares: float = 0.0
    _open: OrderedDict[int, tuple[int, float]] = field(default_factory=OrderedDict)

    @property
    def mean(self) -> float:
        """The mean; 0 without values."""
        return self._sum / self.n if self.n else 0.0

    def add(self, conversation: int, value: float) -> None:
        """Takes in one value."""
        count, before = self._open.pop(conversation, (0, 0.0))
        mean = before + (value - before) / (count + 1)
        self.n += not count
        self._sum += mean - before
        self._squares += mean * mean - before * before
        self._open[conversation] = (count + 1, mean)
        if len(self._open) > MAX_CONVERSATIONS:
            self._open.popitem(last=False)

    def error_squared(self) -> float:
        """The squared error of the mean; 0 while there is one conversation only."""
        if self.n < 2:
            return 0.0
        return max(0.0, self._squares / self.n - self.mean**2) / (self.n - 1)


@dataclass(slots=True)
class Arm:
    """Measurements of one group of conversations."""

    cost: MeanOfMeans = field(default_factory=MeanOfMeans)
    correct: MeanOfMeans = field(default_factory=MeanOfMeans)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGain:
    """Measurements of a route, with and without the hook; means over conversations.

    Args:
        treated_share: share of the prompt found cached, where documents were ordered.
        left_alone_share: the same, where they were left as received.
        error: standard error of the difference.
        seen: conversations of the smaller group.
        off: reordering was switched off.
        harm: the reason was that answers were worse.
        treated_correct: share of correct answers among reported outcomes; None without any.
        left_alone_correct: the same.
        dedup: whether repeated documents give way to notes: ``trial``, ``on`` or ``off``.
    """

    treated_share: float
    left_alone_share: float
    error: float
    seen: int
    off: bool
    harm: bool = False
    treated_correct: float | None = None
    left_alone_correct: float | None = None
    dedup: str = "trial"


HARM_ERRORS = 3.0
"""Standard errors by which answers must be worse. They are looked at after each outcome, so that
two would be passed by chance sooner or later."""

MIN_GAIN = 0.01
"""Increase in the share of prompt tokens found cached that reordering must reach: less is not worth
touching prompts. Otherwise the route switches itself off."""

MIN_REQUESTS = 200
"""Conversations of each group whose usage must be read before the gain is judged; requests that
begin with the same text are one."""

MIN_OUTCOMES = 50
"""Conversations of each group with reported outcomes before their correctness is compared."""

MAX_TRIAL = 20
"""Multiple of `requests` after which de-duplication is given up without a gain."""


class GainGuard:
    """Decides by route whether reordering and de-duplication go on.

    Args:
        share: share of conversations left alone, and of others de-duplicated on trial.
        min_gain: least gain, in cached share of the prompt.
        requests: conversations of either group to see before judging.
        outcomes: the same with reported outcomes, before judging correctness.
    """

    def __init__(
        self,
        *,
        share: float,
        min_gain: float = MIN_GAIN,
        requests: int = MIN_REQUESTS,
        outcomes: int = MIN_OUTCOMES,
    ) -> None:
        self._slots = round(share * 10_000)
        self._min_gain = min_gain
        self._requests = requests
        self._outcomes = outcomes
        self._arms: dict[str, tuple[Arm, Arm]] = {}  # treated, left alone
        self._dedup: dict[str, tuple[Arm, Arm]] = {}
        self._off: set[str] = set()
        self._harmed: set[str] = set()
        self._dedup_state: dict[str, str] = {}

    def holds_out(self, conversation: int) -> bool:
        """Whether the conversation with this hash is in the slice."""
        return (conversation >> 20) % 10_000 < self._slots

    def is_off(self, route: str) -> bool:
        """Whether reordering was switched off for a route."""
        return route in self._off

    def dedups(self, route: str, conversation: int) -> bool:
        """Whether repeated documents of a conversation give way to notes."""
        state = self._dedup_state.get(route, "trial")
        if state == "off" or not self._slots:
            return False
        chosen = (conversation >> 40) % 10_000 < self._slots  # apart from `holds_out`
        return chosen == (state == "trial")

    def record(self, route: str, conversation: int, *, held_out: bool, cached_share: float) -> None:
        """Takes in one answer's usage."""
        arms = self._of(self._arms, route)
        if arms is None:
            return
        arms[held_out].cost.add(conversation, min(1.0, max(0.0, cached_share)))
        treated, alone = arms[0].cost, arms[1].cost
        if not self._slots or min(alone.n, treated.n) < self._requests:
            return
        if treated.mean - alone.mean + 2 * _error(arms) < self._min_gain:
            self._off.add(route)

    def record_dedup(
        self, route: str, conversation: int, *, deduplicated: bool, uncached: float
    ) -> None:
        """Takes in one answer's usage, of a request that repeats documents.

        Args:
            route: route of the request.
            conversation: hash of its beginning.
            deduplicated: notes stand for the repeated ones.
            uncached: tokens that had to be prefilled, for each byte received.
        """
        arms = self._of(self._dedup, route)
        if arms is not None:
            arms[not deduplicated].cost.add(conversation, uncached)
            self._judge_dedup(route)

    def record_outcome(
        self,
        route: str,
        conversation: int,
        *,
        held_out: bool,
        deduplicated: bool | None,
        correct: bool,
    ) -> None:
        """Takes in whether an answer was right.

        Args:
            route: route of the request.
            conversation: hash of its beginning.
            held_out: its documents were left as received.
            deduplicated: notes stand for repeated ones; None where none is repeated.
            correct: the reported outcome.
        """
        arms = self._of(self._arms, route)
        if arms is not None:
            arms[held_out].correct.add(conversation, float(correct))
            if self._harms(arms):
                self._off.add(route)
                self._harmed.add(route)
        dedup = self._of(self._dedup, route) if deduplicated is not None else None
        if dedup is not None:
            dedup[not deduplicated].correct.add(conversation, float(correct))
            self._judge_dedup(route)

    def _judge_dedup(self, route: str) -> None:
        """Switches on with a gain and no harm; off with harm, or without a gain."""
        treated, alone = self._dedup[route]
        seen = min(treated.cost.n, alone.cost.n)
        saved = alone.cost.mean - treated.cost.mean
        error = _error((treated, alone))
        heard = min(treated.correct.n, alone.correct.n) >= self._outcomes
        if self._harms((treated, alone)):
            self._dedup_state[route] = "off"
        elif self._dedup_state.get(route) == "off":
            return
        elif seen >= self._requests and saved > 2 * error and heard:
            self._dedup_state[route] = "on"
        elif seen >= MAX_TRIAL * self._requests and saved <= 2 * error:
            self._dedup_state[route] = "off"

    def _harms(self, arms: tuple[Arm, Arm]) -> bool:
        """Whether the treated answers are worse than chance explains.

        The error is that of equally good groups: 50 right answers of 50 have none of their own.
        """
        treated, alone = arms[0].correct, arms[1].correct
        if min(treated.n, alone.n) < self._outcomes:
            return False
        share = (treated.mean * treated.n + alone.mean * alone.n) / (treated.n + alone.n)
        error = (share * (1.0 - share) * (1.0 / treated.n + 1.0 / alone.n)) ** 0.5
        return bool(treated.mean - alone.mean < -HARM_ERRORS * error)

    @staticmethod
    def _of(of_all: dict[str, tuple[Arm, Arm]], route: str) -> tuple[Arm, Arm] | None:
        if route not in of_all and len(of_all) >= MAX_ROUTES:
            return None
        return of_all.setdefault(route, (Arm(), Arm()))

    def reset(self, route: str) -> None:
        """Forgets a route and switches it on again."""
        self._off.discard(route)
        self._harmed.discard(route)
        self._arms.pop(route, None)
        self._dedup.pop(route, None)
        self._dedup_state.pop(route, None)

    def gains(self) -> dict[str, RouteGain]:
        """The gains by route."""
        return {
            route: RouteGain(
                treated_share=treated.cost.mean,
                left_alone_share=alone.cost.mean,
                error=_error((treated, alone)),
                seen=min(treated.cost.n, alone.cost.n),
                off=route in self._off,
                harm=route in self._harmed,
                treated_correct=treated.correct.mean if treated.correct.n else None,
                left_alone_correct=alone.correct.mean if alone.correct.n else None,
                dedup=self._dedup_state.get(route, "trial"),
            )
            for route, (treated, alone) in self._arms.items()
        }


def _error(arms: tuple[Arm, Arm]) -> float:
    """Standard error of the difference of two groups' costs."""
    return math.sqrt(arms[0].cost.error_squared() + arms[1].cost.error_squared())
