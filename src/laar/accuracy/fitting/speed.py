"""Fit c(m) to timed answers: a slope that is robust to outliers and to many short prompts.

The time to first token of a short prompt mostly reflects the engine's overhead, queue and jitter;
only prompts of very different lengths reveal the time per token. So the slope is the weighted
median of the slopes between pairs of such prompts (Theil and Sen), each weighted by the difference
between its lengths. Its error is the standard deviation of this median over resampled answers. The
effect of context is chosen from a few values; the default is used unless one fits clearly better.
An adapter uses the weights of its base, so one slope is fitted to the answers of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import Speed
from laar.accuracy.assessment import BEND, CONTEXT_TOKENS, MAX_BEND
from laar.accuracy.fitting.outcomes import MeasuredOutcome

_APART = 2.0  # minimum ratio of lengths; below it, two prompts differ only by jitter
_LEAST_PAIRS = 10
_POINTS = 96  # beyond this, answers of similar lengths are replaced by their medians
_RESAMPLES = 40
_BENDS = (0.0, 1.0, BEND, 4.0, 8.0, 16.0, 32.0, MAX_BEND)
_CLEARLY = 0.95  # a bend replaces the default if its error is below this share of the default's

_Floats = NDArray[np.float64]


def fit_speed(shared: Sequence[MeasuredOutcome], own: Sequence[MeasuredOutcome]) -> Speed | str:
    """Return the speed of a model, or the reason why it can't be fitted.

    Args:
        shared: answers of all models that share its weights, and thus c(m).
        own: answers of the model itself.
    """
    timed, seconds = _timed(shared)
    if not timed:
        return "no answer has both a prompt length and a time"
    tokens = np.array([float(outcome.prompt_tokens or 0) for outcome in timed])
    cached = np.array([float(outcome.cached_tokens or 0) for outcome in timed])
    x, _ = _medians(tokens - cached, seconds)
    if len(_apart(x)[0]) < _LEAST_PAIRS:
        return (
            f"{len(timed)} timed answers to prompts of {x[0]:.0f} to {x[-1]:.0f} tokens are too "
            "alike in length, or too few, to show the time per token"
        )
    lines = {bend: _line(_work(tokens, cached, bend), seconds) for bend in _BENDS}
    best = min(lines, key=lambda bend: lines[bend].error)
    bend = best if lines[best].error < _CLEARLY * lines[BEND].error else BEND
    slope, start_s, _ = lines[bend]
    spread = _spread(*_medians(_work(tokens, cached, bend), seconds))
    # How long a typical answer takes after its first token.
    rest = [outcome.latency_s - outcome.ttft_s for outcome in own if outcome.ttft_s] or [0.0]
    speed = Speed(
        seconds_per_token=rounded(min(max(slope, 1e-12), 10.0)),
        spread_s_per_token=rounded(min(spread, 10.0)),
        start_s=rounded(start_s),
        fixed_s=rounded(start_s + max(float(np.median(rest)), 0.0)),
        bend=bend,
        samples=len(timed),
    )
    if slope <= 0.0 or not speed.sure:
        return (
            f"{slope * 1e6:.3g} +- {spread * 1e6:.2g} us a token from {len(timed)} answers is not "
            "a measurement: times to first token vary more than prompt lengths explain"
        )
    return speed


def _work(tokens: _Floats, cached: _Floats, bend: float) -> _Floats:
    """Return how many tokens without context would take as long to prefill as the uncached ones."""
    return (tokens - cached) * (1.0 + bend * 0.5 * (tokens + cached) / CONTEXT_TOKENS)


class _Line(NamedTuple):
    """A line fitted to times to first token, and its mean relative error."""

    slope: float
    start_s: float
    error: float


def _line(work: _Floats, seconds: _Floats) -> _Line:
    x, t = _medians(work, seconds)
    slope = _slope(x, t, _apart(x))
    # Weights for relative errors: short prompts should fit as well as long ones.
    start_s = max(_weighted_median(t - slope * x, 1.0 / x), 0.0)
    return _Line(slope, start_s, float(np.mean(np.abs(start_s + slope * x - t) / t)))


def _timed(outcomes: Sequence[MeasuredOutcome]) -> tuple[list[MeasuredOutcome], _Floats]:
    """Return the answers whose prompts were not fully cached, and their times.

    The times are those to the first token if most answers have them, because decoding depends on
    the answer rather than the prompt.
    """
    usable = [
        outcome
        for outcome in outcomes
        if outcome.prompt_tokens
        and outcome.latency_s > 0
        and (outcome.cached_tokens or 0) < outcome.prompt_tokens
    ]
    seen = [outcome for outcome in usable if outcome.ttft_s]
    if 2 * len(seen) >= len(usable):
        return seen, np.array([outcome.ttft_s or 0.0 for outcome in seen])
    return usable, np.array([outcome.latency_s for outcome in usable])


def _medians(x: _Floats, t: _Floats) -> tuple[_Floats, _Floats]:
    """Return at most `_POINTS` points: the medians of answers with similar lengths."""
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, min(_POINTS, len(x)))
    return (
        np.array([np.median(x[group]) for group in groups]),
        np.array([np.median(t[group]) for group in groups]),
    )


def _apart(x: _Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pairs of points in which the second is at least `_APART` times the first."""
    first, second = (x[None, :] >= _APART * x[:, None]).nonzero()
    return first, second


def _slope(x: _Floats, t: _Floats, pairs: tuple[NDArray[np.intp], NDArray[np.intp]]) -> float:
    first, second = pairs
    distance = x[second] - x[first]
    return _weighted_median((t[second] - t[first]) / distance, distance)


def _spread(x: _Floats, t: _Floats) -> float:
    """Return the standard error of the slope, from resampled points."""
    rng = np.random.default_rng(0)
    slopes = []
    for _ in range(_RESAMPLES):
        drawn = rng.integers(0, len(x), len(x))
        pairs = _apart(x[drawn])
        if len(pairs[0]):
            slopes.append(_slope(x[drawn], t[drawn], pairs))
    return float(np.std(slopes)) if len(slopes) > 1 else float("inf")


def _weighted_median(values: _Floats, weights: _Floats) -> float:
    return float(np.quantile(values, 0.5, weights=weights, method="inverted_cdf"))


def rounded(value: float) -> float:
    """Round to six significant digits, which is more precise than any measurement."""
    return float(f"{value:.6g}")
