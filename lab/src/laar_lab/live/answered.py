"""Times to a correct answer in a comparison: shares by time, PAR-2, and a verdict in words.

Mean time to correct answer rewards giving up early: a question dropped after two seconds counts as
two seconds. PAR-2 does not: a question without a correct answer within the limit counts as twice
the limit (the penalized average runtime of solver competitions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from scipy.stats import bootstrap  # type: ignore[import-untyped]

from laar_lab.live.comparison import Tally
from laar_lab.report import Chart
from laar_lab.statistics import CONFIDENCE, Estimate

LIMIT_S = 60.0
"""How long a user waits, in the fleet's seconds."""
MARKS_S = (5.0, 10.0, 30.0, 60.0)
FEWEST = 6
"""Fewest questions that can show a difference at 95 %, if all of them go the same way."""
_TOO_FEW = f"too few questions for a difference; ask {FEWEST} or more"
_RESAMPLES = 4_000
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A policy's times per question.

    Args:
        name: name shown to the reader.
        seconds: seconds to the correct answer, by question; infinite if there was none.
        engine_s: time that the attempts spent in engines, without queueing; None if unknown.
        machine_s: mean time of an attempt outside its engine: in clients, Envoy and picker. It
            depends on this machine, and the time scale magnifies it. None if unknown.
    """

    name: str
    seconds: Mapping[str, float]
    engine_s: float | None = None
    machine_s: float | None = None

    @classmethod
    def of(cls, tally: Tally, *, time_scale: float, name: str | None = None) -> Contestant:
        """Return a contestant from its tally, with times in the fleet's seconds."""
        made = [attempt.latency_s for _, one in tally.results for attempt in one.attempts]
        return cls(
            name=name or tally.policy,
            seconds={
                query.id: outcome.ttca_s / time_scale if outcome.correct else math.inf
                for query, outcome in tally.results
            },
            engine_s=None if tally.engine_s is None else tally.engine_s / time_scale,
            machine_s=None
            if tally.served_s is None
            else (sum(made) - tally.served_s) / len(made) / time_scale,
        )

    def within(self, seconds: float) -> float:
        """Return the share of the questions answered correctly within these seconds."""
        return fmean(each <= seconds for each in self.seconds.values())

    @property
    def par2_s(self) -> float:
        """Mean seconds to a correct answer; a question without one counts as twice the limit."""
        return fmean(map(_penalized, self.seconds.values()))

    @property
    def engine_s_per_correct(self) -> float | None:
        """Engine seconds for each correct answer; None if unknown, or if none was correct."""
        correct = sum(map(math.isfinite, self.seconds.values()))
        return self.engine_s / correct if self.engine_s is not None and correct else None


def _penalized(seconds: float) -> float:
    return seconds if seconds <= LIMIT_S else 2 * LIMIT_S


def saved(ours: Contestant, theirs: Contestant) -> tuple[float, float, float]:
    """Return the share of their PAR-2 that ours saves, and the ends of its 95 % interval."""

    def share(mine: np.ndarray, other: np.ndarray, axis: int = -1) -> Any:
        return 1.0 - mine.mean(axis=axis) / other.mean(axis=axis)

    return _compared(ours, theirs, _penalized, share)


def more_within(
    ours: Contestant, theirs: Contestant, seconds: float, *, comparisons: int = 1
) -> tuple[float, float, float]:
    """Return our lead in the share correct within these seconds, and the ends of its interval.

    The interval is widened so that `comparisons` of them all hold with a probability of 95 %
    (Bonferroni).
    """

    def difference(mine: np.ndarray, other: np.ndarray, axis: int = -1) -> Any:
        return mine.mean(axis=axis) - other.mean(axis=axis)

    return _compared(
        ours,
        theirs,
        lambda took_s: float(took_s <= seconds),
        difference,
        confidence=1.0 - (1.0 - CONFIDENCE) / comparisons,
    )


def _compared(
    ours: Contestant,
    theirs: Contestant,
    value: Callable[[float], float],
    statistic: Callable[..., Any],
    *,
    confidence: float = CONFIDENCE,
) -> tuple[float, float, float]:
    """Return a statistic of the two, and its bootstrap interval over their common questions."""
    pairs = np.array(
        [
            (value(ours.seconds[each]), value(theirs.seconds[each]))
            for each in sorted(ours.seconds.keys() & theirs.seconds.keys())
        ]
    )
    estimate = float(statistic(pairs[:, 0], pairs[:, 1]))
    if len(pairs) < FEWEST and estimate != 0.0:
        return estimate, -math.inf, math.inf
    if np.ptp(pairs[:, 0] - pairs[:, 1]) == 0.0:
        return estimate, estimate, estimate
    interval = bootstrap(
        (pairs[:, 0], pairs[:, 1]),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return estimate, float(interval.low), float(interval.high)


def sentence(ours: Contestant, theirs: Contestant) -> str:
    """Return a sentence that gives the difference and its interval, or says that none is shown."""
    estimate, low, high = saved(ours, theirs)
    figures = f"{ours.par2_s:.1f} s against {theirs.par2_s:.1f} s a question (PAR-2)"
    if math.isinf(low):
        return f"{ours.name} and {theirs.name}: {figures}, {_TOO_FEW}."
    interval = f"95 % interval {low:+.0%} to {high:+.0%}"
    if low > 0:
        less = f"{ours.name} takes {estimate:.0%} less time than {theirs.name}"
        return f"{less}: {figures}, {interval}."
    if high < 0:
        more = f"{ours.name} takes {-estimate:.0%} more time than {theirs.name}"
        return f"{more}: {figures}, 95 % interval {-high:+.0%} to {-low:+.0%}."
    text = f"{ours.name} and {theirs.name} tie on {len(ours.seconds)} questions: {figures}, "
    ahead, behind = _beyond_chance(ours, theirs)
    parts = [f"more correct answers by {', '.join(ahead)}"] if ahead else []
    parts += [f"fewer by {', '.join(behind)}"] if behind else []
    return text + interval + (f". {ours.name} has {', '.join(parts)}" if parts else "") + "."


def _beyond_chance(ours: Contestant, theirs: Contestant) -> tuple[list[str], list[str]]:
    """Return the marks at which ours has significantly more, and fewer, correct answers."""
    ahead, behind = [], []
    for mark in MARKS_S:
        _, low, high = more_within(ours, theirs, mark, comparisons=len(MARKS_S))
        if low > 0:
            ahead.append(f"{mark:g} s")
        elif high < 0:
            behind.append(f"{mark:g} s")
    return ahead, behind


def soon(ours: Contestant, others: Sequence[Contestant]) -> str:
    """Return a sentence that compares the shares of correct answers at the first mark."""
    mark = MARKS_S[0]
    best = max(others, key=lambda one: one.within(mark))
    gain, low, high = more_within(ours, best, mark, comparisons=len(others))
    text = (
        f"Within {mark:g} s {ours.name} has {ours.within(mark):.0%} correct and {best.name}, the "
        f"best of the others, {best.within(mark):.0%}: {100 * gain:+.0f} points, "
    )
    if math.isinf(low):
        return f"{text}{_TOO_FEW}."
    text += f"95 % interval {100 * low:+.0f} to {100 * high:+.0f}"
    if low <= 0 <= high:
        return f"{text}, so no difference beyond chance."
    if gain < 0 and ours.par2_s < best.par2_s:
        text += (
            f". By PAR-2 it is ahead, {ours.par2_s:.1f} s against {best.par2_s:.1f} s: it takes "
            "the least expected time to a correct answer, but does not have the most by this moment"
        )
    return f"{text}."


def chart(contestants: Sequence[Contestant], marks_s: Sequence[float]) -> Chart:
    """Chart the share of correct answers by time, with normal 95 % intervals."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

    def share(one: Contestant, mark: float) -> Estimate:
        p, n = one.within(mark), len(one.seconds)
        return Estimate(p, z * (p * (1 - p) / n) ** 0.5)

    return Chart(
        title="Questions answered correctly",
        x_label="seconds from the first attempt",
        y_label="share",
        x=list(marks_s),
        series={one.name: [share(one, mark) for mark in marks_s] for one in contestants},
    )
