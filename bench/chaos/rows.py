"""The rows of `python -m bench failing`: faults, their measurements, and laar's targets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.asking import GOOD, End, Ended
from bench.figures import rank

__all__ = ["POISON", "ROWS", "Healing", "Row", "Run"]

POISON = "x-poison"
"""Header of requests that every endpoint fails, in rows with `poison`."""


@dataclass(slots=True)
class Run:
    """The measurements of one row.

    `ended` are the requests that should be answered; `poison` are those that no endpoint answers,
    and `poison_attempts` counts how often endpoints received one of them.
    """

    ended: list[Ended] = field(default_factory=list)
    poison: list[Ended] = field(default_factory=list)
    poison_attempts: int = 0
    seen: list[int] = field(default_factory=list)
    fault_s: float = 0.0
    healed_after_s: float | None = None
    failed_trials: int = 0
    baseline_p95_s: float = float("nan")

    @property
    def lost(self) -> list[Ended]:
        """Return the requests without a correct answer."""
        return [e for e in self.ended if e.end not in GOOD]

    @property
    def lost_share(self) -> float:
        """Return the share of requests lost."""
        return len(self.lost) / max(1, len(self.ended))

    @property
    def lost_late(self) -> list[Ended]:
        """Return the lost requests that began over `LEARNING_S` after the fault."""
        return [e for e in self.lost if e.began_s > self.fault_s + LEARNING_S]

    @property
    def lost_late_share(self) -> float:
        """Return the share lost of requests that began over `LEARNING_S` after the fault."""
        late = sum(e.began_s > self.fault_s + LEARNING_S for e in self.ended)
        return len(self.lost_late) / max(1, late)

    @property
    def p95_ratio(self) -> float:
        """Return the p95 of correct answers, relative to the fleet without the fault."""
        times = [e.took_s for e in self.ended if e.end in GOOD]
        return rank(times, 0.95) / self.baseline_p95_s

    @property
    def engine_errors(self) -> float:
        """Return the share of requests that ended with an engine's error."""
        ends = Counter(e.end for e in self.ended)
        return (ends[End.ENGINE] + ends[End.EVENT]) / max(1, len(self.ended))

    @property
    def attempts_per_poison(self) -> float:
        """Return the mean number of attempts per poison request."""
        return self.poison_attempts / max(1, len(self.poison))


Verdict = tuple[str, Callable[[Run], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """An endpoint that heals under load; the load ends when the endpoint gets its share again.

    Args:
        after_s: duration of the fault in seconds.
        share: required part of a fair share.
        window_s: seconds over which the share is measured.
    """

    after_s: float
    share: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and laar's target under it.

    Args:
        name: name of the row.
        faults: faults of one endpoint, or of all with `everywhere`.
        everywhere: whether all endpoints have the faults.
        poison: fault of every endpoint for half of the requests, in addition to `faults`.
        heals: how the endpoint heals; None if it does not.
        target: target as text, and its test.
    """

    name: str
    faults: tuple[str, ...] = ()
    everywhere: bool = False
    poison: str = ""
    heals: Healing | None = None
    target: Verdict


LEARNING_S = 2.0
"""Seconds after which a fault should be detected."""


def _nothing(run: Run) -> bool:
    return not run.lost


def _poison(run: Run) -> bool:
    return run.p95_ratio <= 1.2 and run.attempts_per_poison <= 1.2


_NONE: Verdict = ("0 lost", _nothing)
_LEARNED: Verdict = (
    "< 1 % lost, none after 2 s",
    lambda r: r.lost_share < 0.01 and not r.lost_late,
)
_USELESS: Verdict = ("<= 1 % lost after 2 s", lambda r: r.lost_late_share <= 0.01)
ROWS = (
    Row(name="none", target=_NONE),
    Row(name="503", faults=("503",), target=_NONE),
    Row(name="500", faults=("500",), target=_NONE),
    Row(name="reset", faults=("refuse",), target=_NONE),
    Row(name="every second", faults=("503@every=2",), target=_NONE),
    Row(name="error event", faults=("error",), target=_LEARNED),
    Row(name="html", faults=("html",), target=_USELESS),
    Row(name="empty", faults=("empty",), target=_USELESS),
    Row(name="foreign model", faults=("foreign-model",), target=_USELESS),
    Row(name="cut", faults=("cut:1",), target=_USELESS),
    Row(name="429", faults=("429:1",), target=_NONE),
    # Not retried elsewhere by default: it may be the client's fault.
    Row(name="401", faults=("401@without=authorization",), target=_LEARNED),
    Row(
        name="hang",
        faults=("hang",),
        target=(
            "<= 5 lost, p95 <= 1.2",
            lambda r: len(r.lost) <= 5 and r.p95_ratio <= 1.2,
        ),
    ),
    Row(
        name="ten times slower",
        faults=("slow:10",),
        target=("0 lost, p95 <= 1.2", lambda r: _nothing(r) and r.p95_ratio <= 1.2),
    ),
    Row(
        name="heals",
        faults=("503",),
        heals=Healing(after_s=12.0, share=0.8, window_s=10.0),
        target=(
            ">= 80 % of its share within 60 s, failed trials <= 30",
            lambda r: r.healed_after_s is not None and r.failed_trials <= 30,
        ),
    ),
    Row(
        # A stream reports the full queue as an event in a 200, which is not retried.
        name="full for 5 s",
        faults=("full",),
        heals=Healing(after_s=5.0, share=0.5, window_s=3.0),
        target=(
            "<= 5 lost, half of its share within 5 s",
            lambda r: len(r.lost) <= 5 and (r.healed_after_s or math.inf) <= 5.0 + 3.0,
        ),
    ),
    Row(
        name="all fail",
        faults=("500",),
        everywhere=True,
        target=(
            "all tried, >= 99 % of errors from engines",
            lambda r: r.engine_errors >= 0.99 and min(r.seen) > 0,
        ),
    ),
    *(
        Row(
            name=f"poison {fault}",
            poison=fault,
            target=(
                "0 others lost, p95 <= 1.2, <= 1.2 attempts",
                lambda r: _nothing(r) and _poison(r),
            ),
        )
        for fault in ("500", "503", "refuse")
    ),
    Row(
        name="poison and a dead endpoint",
        faults=("500",),
        poison="500",
        target=(
            "<= 1 % of others lost, p95 <= 1.2, <= 1.2 attempts",
            lambda r: r.lost_share <= 0.01 and _poison(r),
        ),
    ),
)
