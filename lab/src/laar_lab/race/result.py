"""Results of a race: numbers of each turn, ratios with intervals, and a sentence per rival.

Turns of one repetition send the same requests, so routers are compared within each repetition.
Ratios are geometric means over repetitions, with Student's 95 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from laar_lab.race.clients import Row
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import estimate, log_ratios

METRICS = {
    "ttft_mean_s": "TTFT mean s",
    "ttft_p50_s": "TTFT median s",
    "ttft_p95_s": "TTFT p95 s",
    "answer_mean_s": "answer mean s",
    "answer_p95_s": "answer p95 s",
    "answers_per_s": "answers/s",
}
"""Metrics by which routers are compared, and their headings."""

COUNTS = {
    "cached": "cached",
    "requests": "requests",
    "failed_percent": "failed %",
    "late_p95_s": "sent late p95 s",
    "cpu_ms": "router's CPU ms a request",
}
"""Other numbers of a turn, and their headings."""

_MORE_IS_BETTER = {"answers_per_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One router's turn.

    Args:
        router: name of the router.
        repetition: its number, from 0; all turns of a repetition send the same requests.
        numbers: values of `METRICS` and `COUNTS`.
    """

    router: str
    repetition: int
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of ours to theirs with its interval, whose ends are NaN for a single repetition."""

    value: float
    low: float
    high: float

    def verdict(self, *, more_is_better: bool) -> str:
        """Return `better` or `worse`, or an empty string if the interval contains 1."""
        if not (self.high < 1.0 or self.low > 1.0):
            return ""
        return "better" if (self.low > 1.0) is more_is_better else "worse"

    @property
    def percent(self) -> str:
        """How much ours exceeds theirs, in percent, with its interval."""
        value, low, high = (100.0 * (ratio - 1.0) for ratio in (self.value, self.low, self.high))
        return f"{value:+.0f} % ({low:+.0f} to {high:+.0f})"

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "none"
        if math.isnan(self.low):
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def numbers_of(
    rows: Sequence[Row], *, from_s: float, until_s: float, cpu_s: float | None
) -> dict[str, float]:
    """Return a turn's numbers, computed over the requests due from `from_s` on.

    Args:
        rows: the turn's requests.
        from_s: end of the warm-up; requests due earlier are ignored.
        until_s: end of the traffic.
        cpu_s: CPU seconds of the router in the whole turn; None if unknown.
    """
    counted = [row for row in rows if row.due_s >= from_s]
    answered = [row for row in counted if not row.fault]
    with_counts = [row for row in answered if row.cached_tokens is not None]
    ttft = np.array([row.ttft_s for row in answered if row.ttft_s is not None] or [math.nan])
    answer = np.array([row.answer_s for row in answered] or [math.nan], np.float64)
    ended_s = max((row.due_s + (row.answer_s or 0.0) for row in answered), default=until_s)
    return {
        "ttft_mean_s": float(ttft.mean()),
        "ttft_p50_s": float(np.percentile(ttft, 50)),
        "ttft_p95_s": float(np.percentile(ttft, 95)),
        "answer_mean_s": float(answer.mean()),
        "answer_p95_s": float(np.percentile(answer, 95)),
        "answers_per_s": len(answered) / max(1e-9, max(ended_s, until_s) - from_s),
        "cached": sum(row.cached_tokens or 0 for row in with_counts)
        / max(1, sum(row.prompt_tokens for row in with_counts))
        if with_counts
        else math.nan,
        "requests": len(counted),
        "failed_percent": 100.0 * (len(counted) - len(answered)) / max(1, len(counted)),
        "cut_off": sum(row.broke_off for row in counted),
        "lost": sum(bool(row.fault) and not row.broke_off for row in counted),
        "late_p95_s": float(np.percentile([row.late_s for row in counted], 95)) if counted else 0.0,
        "cpu_ms": math.nan if cpu_s is None else 1e3 * cpu_s / max(1, len(rows)),
    }


def ratios(turns: Sequence[Turn], ours: str, theirs: str) -> dict[str, Ratio]:
    """Return the ratio of ours to theirs in every metric, over the repetitions that both have."""
    by = {(turn.router, turn.repetition): turn.numbers for turn in turns}
    both = sorted(n for router, n in by if router == ours and (theirs, n) in by)
    return {
        name: ratio([by[ours, n][name] for n in both], [by[theirs, n][name] for n in both])
        for name in METRICS
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two numbers of each repetition; NaN if some are not above zero."""
    pairs = zip(ours, theirs, strict=True)
    known = [(a, b) for a, b in pairs if a > 0.0 and b > 0.0]
    if not known or len(known) < len(ours):
        return Ratio(value=math.nan, low=math.nan, high=math.nan)
    seen = estimate(log_ratios(*zip(*known, strict=True)))
    value = math.exp(seen.mean)
    if math.isnan(seen.half):
        return Ratio(value=value, low=math.nan, high=math.nan)
    return Ratio(value=value, low=math.exp(seen.low), high=math.exp(seen.high))


def sentence(turns: Sequence[Turn], ours: str, theirs: str) -> str:
    """Return a sentence that says where ours is better, worse, or not shown to differ."""
    said: dict[str, list[str]] = {"better": [], "worse": [], "": []}
    for name, ratio in ratios(turns, ours, theirs).items():
        verdict = ratio.verdict(more_is_better=name in _MORE_IS_BETTER)
        metric = METRICS[name].removesuffix(" s")
        said[verdict].append(f"{metric} {ratio.percent}" if verdict else metric)
    failed = [mean_of(turns, router, "failed_percent") for router in (ours, theirs)]
    return (
        f"{ours}, compared with {theirs}, is better in {', '.join(said['better']) or 'nothing'}; "
        f"worse in {', '.join(said['worse']) or 'nothing'}; no difference is shown in "
        f"{', '.join(said['']) or 'nothing'}; {failed[0]:.3g} % of its requests failed, "
        f"{failed[1]:.3g} % of {theirs}'s."
    )


def report(turns: Sequence[Turn], title: str, remarks: Iterable[str]) -> Report:
    """Report on a race; the other routers are compared with the first.

    Args:
        turns: all turns.
        title: title of the table: the traffic and the engines.
        remarks: additional lines to print.
    """
    routers = list(dict.fromkeys(turn.router for turn in turns))
    repetitions = max(turn.repetition for turn in turns) + 1
    columns = {**METRICS, **COUNTS}
    means: list[tuple[Value, ...]] = [
        (router, *(mean_of(turns, router, name) for name in columns)) for router in routers
    ]
    ours, *others = routers
    compared = [(other, *map(str, ratios(turns, ours, other).values())) for other in others]
    over = f", 95 % interval over {repetitions} repetitions" if repetitions > 1 else ""
    tables = [Table(title=title, columns=("router", *columns.values()), rows=means, digits=3)]
    if compared:
        tables.append(
            Table(
                title=f"{ours} / each other router{over}",
                columns=("router", *METRICS.values()),
                rows=compared,
            )
        )
    few = [] if repetitions > 1 else ["One repetition has no intervals, so nothing is shown."]
    return Report(
        tables=tables,
        remarks=[*(sentence(turns, ours, other) for other in others), *few, *remarks],
    )


def mean_of(turns: Sequence[Turn], router: str, name: str) -> float:
    """Return the mean of a number over a router's turns."""
    return fmean(turn.numbers[name] for turn in turns if turn.router == router)
