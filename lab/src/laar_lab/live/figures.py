"""The two figures of the paper for a comparison: their numbers, and a plot.

Figure 3: for each policy, success rate against time to correct answer after one attempt, two, and
so on. Figure 4: by language and length, how much shorter the first policy's time to correct answer
is than each other policy's, after the last attempt. A question that is never answered correctly
contributes the time spent on it (right-censored), as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laar.client import Outcome
from laar.errors import SettingError, install
from laar_lab.kv_lookup import Query
from laar_lab.live.comparison import Tally
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point in Figure 3: a policy after a given number of attempts."""

    policy: str
    attempts: int
    success_rate: float
    ttca_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """One bar of Figure 4; `ratio` is 1 - ours / theirs, above 0 if ours is faster."""

    baseline: str
    language: str
    length_tokens: int
    questions: int
    ours_s: float
    theirs_s: float

    @property
    def ratio(self) -> float:
        """The share of the baseline's time that is saved."""
        return 1 - self.ours_s / self.theirs_s

    def as_dict(self) -> dict[str, object]:
        """Return the improvement as plain JSON types."""
        return {**asdict(self), "improvement": self.ratio}


def steps(tally: Tally, *, time_scale: float = 1.0) -> list[Step]:
    """Return the success rate and mean time to correct answer after 1, 2, ... attempts.

    The list ends when every question is answered correctly or given up.
    """
    outcomes = [outcome for _, outcome in tally.results]
    most = max((len(outcome.attempts) for outcome in outcomes), default=0)
    return [
        Step(
            policy=tally.policy,
            attempts=made,
            success_rate=_mean([_is_correct_by(outcome, made) for outcome in outcomes]),
            ttca_s=_mean([_time_by(outcome, made) for outcome in outcomes]) / time_scale,
        )
        for made in range(1, min(most, MAX_ATTEMPTS) + 1)
    ]


def improvements(
    ours: Tally, others: Sequence[Tally], *, time_scale: float = 1.0
) -> list[Improvement]:
    """Compare ours with each other policy, by cell."""
    mine = _by_cell(ours)
    return [
        Improvement(
            baseline=other.policy,
            language=language,
            length_tokens=length,
            questions=len(mine[language, length]),
            ours_s=_mean(mine[language, length]) / time_scale,
            theirs_s=_mean(theirs[language, length]) / time_scale,
        )
        for other in others
        for theirs in (_by_cell(other),)
        for language, length in sorted(mine)
    ]


def _by_cell(tally: Tally) -> dict[tuple[str, int], list[float]]:
    cells: dict[tuple[str, int], list[float]] = {}
    for query, outcome in tally.results:
        cells.setdefault(_cell(query), []).append(outcome.ttca_s)
    return cells


def _cell(query: Query) -> tuple[str, int]:
    return query.language, query.length_tokens


def _is_correct_by(outcome: Outcome, made: int) -> float:
    return float(any(attempt.correct for attempt in outcome.attempts[:made]))


def _time_by(outcome: Outcome, made: int) -> float:
    return sum(attempt.latency_s + attempt.waited_s for attempt in outcome.attempts[:made])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def plot(path: Path, curves: Sequence[Sequence[Step]], bars: Sequence[Improvement]) -> None:
    """Draw both figures side by side; the file's suffix sets the format.

    Raises:
        SettingError: matplotlib is not installed, or the file can't be written in that format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError(f"--plot needs matplotlib; {install('lab')}") from None
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for curve in curves:
        left.plot(
            [step.ttca_s for step in curve],
            [step.success_rate for step in curve],
            marker="o",
            label=curve[0].policy,
        )
    left.set(xlabel="mean time to correct answer, s", ylabel="success rate", ylim=(0, 1.02))
    left.set_title("By attempt, from the left")
    left.legend()
    baselines = list(dict.fromkeys(bar.baseline for bar in bars))
    cells = list(dict.fromkeys((bar.language, bar.length_tokens) for bar in bars))
    width = 0.8 / max(len(baselines), 1)
    for number, baseline in enumerate(baselines):
        right.bar(
            [at + number * width for at in range(len(cells))],
            [100 * bar.ratio for bar in bars if bar.baseline == baseline],
            width,
            label=f"against {baseline}",
        )
    right.axhline(0, color="black", linewidth=0.8)
    right.set_xticks(
        range(len(cells)),
        [f"{language} {length // 1024}K" for language, length in cells],
        rotation=60,
    )
    right.set(ylabel="time to correct answer saved, %")
    if bars:
        right.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as fault:
        raise SettingError(f"--plot {path}: {fault}") from None
