"""The rows of `python -m bench failing`: a fault, its measurements, its targets for laar."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.asking import End, Ended
from bench.chaos.load import percentile

__all__ = ["GOOD", "ROWS", "Row", "Run"]

GOOD = (End.RIGHT, End.FAILED_OPEN)


@dataclass(slots=True)
class Run:
    """The measurements of one row."""

    ended: list[Ended] = field(default_factory=list)
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


Verdict = tuple[str, Callable[[Run], bool]]


def _nothing(run: Run) -> bool:
    return not run.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and laar's target under it.

    Args:
        name: name of the row.
        faults: faults that one endpoint gets; all get them where `everywhere`.
        everywhere: every endpoint fails.
        signal: signal that a picker gets in the place of an endpoint's fault.
        heals: the endpoint heals after a while, and the load goes on until it has its share back.
        target: target as text, and its test; where native and gateway differ, the gateway's second.
    """

    name: str
    faults: tuple[str, ...] = ()
    everywhere: bool = False
    signal: int | None = None
    heals: bool = False
    target: Verdict
    gateway: Verdict | None = None


_NONE: Verdict = ("0 lost", _nothing)
_LEARNED: Verdict = (
    "< 1 % lost, none after 2 s",
    lambda r: r.lost_share < 0.01 and not any(e.began_s > r.fault_s + 2 for e in r.lost),
)
ROWS = (
    Row(name="503", faults=("503",), target=_NONE),
    Row(name="500", faults=("500",), target=_NONE),
    Row(name="reset", faults=("refuse",), target=_NONE),
    Row(name="every second", faults=("503@every=2",), target=_NONE),
    Row(name="error event", faults=("error",), target=_LEARNED),
    Row(name="html", faults=("html",), target=_LEARNED),
    Row(name="empty", faults=("empty",), target=_LEARNED),
    Row(name="foreign model", faults=("foreign-model",), target=_LEARNED),
    Row(name="cut", faults=("cut",), target=_LEARNED),
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
        heals=True,
        target=(
            ">= 80 % of its share in 60 s, failed trials <= 30",
            lambda r: r.healed_after_s is not None and r.failed_trials <= 30,
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
    Row(name="picker SIGTERM", signal=signal.SIGTERM, target=_NONE),
    Row(
        name="picker SIGKILL",
        signal=signal.SIGKILL,
        target=_NONE,
        gateway=("<= 24 lost: those passing through", lambda r: len(r.lost) <= 24),
    ),
    Row(
        name="picker SIGSTOP",
        signal=signal.SIGSTOP,
        target=("0 lost, no wait > 2 s", lambda r: _nothing(r) and r.longest_wait_s <= 2.0),
        gateway=(
            "<= 24 lost: those passing through; no wait > 2 s",
            lambda r: len(r.lost) <= 24 and r.longest_wait_s <= 2.0,
        ),
    ),
)
