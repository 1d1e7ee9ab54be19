"""The rows of `python -m bench failing`: a fault, its measurements, its targets for laar."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.asking import End, Ended
from bench.chaos.load import percentile

__all__ = ["GOOD", "POISON", "ROWS", "Healing", "Row", "Run"]

GOOD = (End.RIGHT, End.FAILED_OPEN)


POISON = "x-poison"
"""Header of requests that every endpoint fails where a row says so."""


@dataclass(slots=True)
class Run:
    """The measurements of one row.

    `ended` are the requests that ought to be answered; `poison` are those that no endpoint answers,
    and `poison_attempts` the times that an endpoint was sent one of them.
    """

    ended: list[Ended] = field(default_factory=list)
    poison: list[Ended] = field(default_factory=list)
    poison_attempts: int = 0
    seen: list[int] = field(default_factory=list)
    fault_s: float = 0.0
    healed_after_s: float | None = None
    failed_trials: int = 0
    baseline_p95_s: float = float("nan")
    baseline_max_s: float = float("nan")

    @property
    def lost(self) -> list[Ended]:
        """Requests without a right answer."""
        return [e for e in self.ended if e.end not in GOOD]

    @property
    def lost_share(self) -> float:
        """Their share of all requests."""
        return len(self.lost) / max(1, len(self.ended))

    @property
    def lost_late(self) -> list[Ended]:
        """Those of them that began when the fault was two seconds old."""
        return [e for e in self.lost if e.began_s > self.fault_s + LEARNING_S]

    @property
    def lost_late_share(self) -> float:
        """Their share of all requests that began then."""
        late = sum(e.began_s > self.fault_s + LEARNING_S for e in self.ended)
        return len(self.lost_late) / max(1, late)

    @property
    def p95_ratio(self) -> float:
        """The p95 of the right answers, over that of the fleet without the fault."""
        times = [e.took_s for e in self.ended if e.end in GOOD]
        return percentile(times, 0.95) / self.baseline_p95_s

    @property
    def longest_wait_s(self) -> float:
        """Seconds of the slowest request beyond the slowest one without the fault."""
        return max((e.took_s for e in self.ended), default=0.0) - self.baseline_max_s

    @property
    def engine_errors(self) -> float:
        """Share of the ends that were the engines' own errors."""
        ends = Counter(e.end for e in self.ended)
        return (ends[End.ENGINE] + ends[End.EVENT]) / max(1, len(self.ended))

    @property
    def attempts_per_poison(self) -> float:
        """Endpoints that a request which none can answer was sent to."""
        return self.poison_attempts / max(1, len(self.poison))


Verdict = tuple[str, Callable[[Run], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """An endpoint that heals while the load goes on, which ends when it has its share back.

    Args:
        after_s: seconds of its fault.
        share: part of a fair share that it has to get back.
        window_s: seconds over which that is counted.
    """

    after_s: float
    share: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and laar's target under it.

    Args:
        name: name of the row.
        faults: faults that one endpoint gets; all get them where `everywhere`.
        everywhere: every endpoint fails.
        poison: fault of every endpoint for half of the requests, besides `faults`.
        signal: signal that a picker gets in the place of an endpoint's fault.
        stopped_s: seconds until a stopped picker goes on, or a dead one starts again.
        heals: how the endpoint heals; None for one that does not.
        rate_per_s: requests a second; None for those of the run.
        target: target as text, and its test; where native and gateway differ, the gateway's second.
    """

    name: str
    faults: tuple[str, ...] = ()
    everywhere: bool = False
    poison: str = ""
    signal: int | None = None
    stopped_s: float = 8.0
    heals: Healing | None = None
    rate_per_s: float | None = None
    target: Verdict
    gateway: Verdict | None = None


LEARNING_S = 2.0
"""Seconds after which a fault should be known."""
IN_FLIGHT_S = 0.1
"""Requests due so shortly after the end of a picker may still have been sent to it."""


def _nothing(run: Run) -> bool:
    return not run.lost


def _nothing_new(run: Run) -> bool:
    """Whether requests were lost only while they passed through the picker as it ended."""
    return all(e.began_s <= run.fault_s + IN_FLIGHT_S and e.status != 503 for e in run.lost)


def _no_wait(run: Run) -> bool:
    return run.longest_wait_s <= 2.0


def _poison(run: Run) -> bool:
    return run.p95_ratio <= 1.2 and run.attempts_per_poison <= 1.2


_NONE: Verdict = ("0 lost", _nothing)
_LEARNED: Verdict = (
    "< 1 % lost, none after 2 s",
    lambda r: r.lost_share < 0.01 and not r.lost_late,
)
_USELESS: Verdict = ("<= 1 % lost after 2 s", lambda r: r.lost_late_share <= 0.01)
_STOPPED: dict[str, Verdict] = {
    "target": ("0 lost, no wait > 2 s", lambda r: _nothing(r) and _no_wait(r)),
    "gateway": (
        "no 503, none lost but those passing through, no wait > 2 s",
        lambda r: _nothing_new(r) and _no_wait(r),
    ),
}
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
    # Not to be repeated elsewhere unasked: it may be the client's fault.
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
        name="ten times slow",
        faults=("slow:10",),
        target=("0 lost, p95 <= 1.2", lambda r: _nothing(r) and r.p95_ratio <= 1.2),
    ),
    Row(
        name="heals",
        faults=("503",),
        heals=Healing(after_s=12.0, share=0.8, window_s=10.0),
        target=(
            ">= 80 % of its share in 60 s, failed trials <= 30",
            lambda r: r.healed_after_s is not None and r.failed_trials <= 30,
        ),
    ),
    Row(
        # A stream learns of the full queue from an event in a 200, which is not asked for again.
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
            "all tried, >= 99 % engines' errors",
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
        name="poison and a dead one",
        faults=("500",),
        poison="500",
        target=(
            "<= 1 % of others lost, p95 <= 1.2, <= 1.2 attempts",
            lambda r: r.lost_share <= 0.01 and _poison(r),
        ),
    ),
    Row(name="picker SIGTERM", signal=signal.SIGTERM, target=_NONE),
    Row(
        name="picker SIGKILL",
        signal=signal.SIGKILL,
        target=_NONE,
        gateway=("none lost but those passing through", _nothing_new),
    ),
    Row(name="picker SIGSTOP", signal=signal.SIGSTOP, stopped_s=20.0, **_STOPPED),
    Row(
        name="picker SIGSTOP 100/s",
        signal=signal.SIGSTOP,
        stopped_s=20.0,
        rate_per_s=100.0,
        **_STOPPED,
    ),
    Row(name="picker stops for 2 s", signal=signal.SIGSTOP, stopped_s=2.0, **_STOPPED),
)
