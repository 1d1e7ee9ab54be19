"""A check of the measured c(m): a running regression on sampled answers, for each model.

    ttft_s = fixed_s + seconds_per_token * uncached_tokens + queue_s_per_token * queued_tokens

Both kinds of tokens are known to the picker at its decision, and the time to first token is seen in
the answer's stream. The sums of the normal equations decay with each sample, so memory is constant
and an engine that was changed is noticed after some hundred answers. Samples are weighted by
1/tokens, since errors of latency grow with the prompt.

The result is a report, not a correction: routing stays on the measured c(m) until a person (or the
caller) decides, because a regression on live traffic also moves with load that it can't see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["DRIFT_RATIO", "MAX_TRACKED_MODELS", "MIN_SAMPLES", "Drift", "LatencyCheck"]

MIN_SAMPLES = 30.0
"""Decayed samples below which no figure is reported."""

DRIFT_RATIO = 1.25
"""Drift is a c(m) off by this factor either way: less does not change an order of models much."""

MAX_TRACKED_MODELS = 1024
"""1 KB each; names come from the endpoint table."""

_MEMORY_SAMPLES = 500  # effective number of samples that count
_SURE = 3.0  # standard errors that the estimate must be away from the measured value
_MAX_TTFT_S, _MAX_TOKENS = 3600.0, 2**24  # a sample beyond is a broken clock or a lie
_MAX_INFLATION = 1e4  # of the variance, by lengths that move with the constant or the queue
_RIDGE = 1e-9  # of the largest diagonal entry: keeps a load without any queue solvable


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One model's check.

    Args:
        measured_s_per_token: c(m) of the artifact; None if the model was not measured.
        samples: effective number behind the estimate.
        seconds_per_token: c(m) as the answers show it; None below `MIN_SAMPLES`, and while all
            prompts have the same length.
        error_s_per_token: its standard error.
        queue_s_per_token: seconds that a token queued ahead costs.
        drifted: the estimate is off by `DRIFT_RATIO` or more, beyond its error.
    """

    model: str
    measured_s_per_token: float | None
    samples: float
    seconds_per_token: float | None
    error_s_per_token: float | None
    queue_s_per_token: float | None
    drifted: bool


class _Sums:
    """Decayed normal equations of one model: unknowns are (fixed, per uncached, per queued)."""

    def __init__(self) -> None:
        self.xx: NDArray[np.float64] = np.zeros((3, 3))
        self.xy: NDArray[np.float64] = np.zeros(3)
        self.yy = 0.0
        self.samples = 0.0

    def add(self, x: NDArray[np.float64], y: float, weight: float) -> None:
        kept = 1 - 1 / _MEMORY_SAMPLES
        self.xx = kept * self.xx + weight * np.outer(x, x)
        self.xy = kept * self.xy + weight * y * x
        self.yy = kept * self.yy + weight * y * y
        self.samples = kept * self.samples + 1

    def solve(self) -> tuple[NDArray[np.float64], float] | None:
        """Coefficients, and the standard error of the second; None if lengths are too alike."""
        diagonal = np.diag(self.xx)
        scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        unit = self.xx / np.outer(scale, scale) + _RIDGE * np.eye(3)
        inverse = np.linalg.inv(unit)
        if inverse[1, 1] > _MAX_INFLATION:
            return None
        inverse = inverse / np.outer(scale, scale)
        found = inverse @ self.xy
        residual = max(self.yy - float(found @ self.xy), 0.0)
        variance = residual / max(self.samples - 3, 1.0)
        return found, sqrt(max(variance * float(inverse[1, 1]), 0.0))


class LatencyCheck:
    """Compares sampled times to first token with the measured c(m).

    Args:
        measured_s_per_token: c(m) by model, from the artifact; may be exchanged as `measured`.
    """

    def __init__(self, measured_s_per_token: Mapping[str, float]) -> None:
        self.measured = measured_s_per_token
        self._sums: dict[str, _Sums] = {}
        self.refused = 0
        """Samples ignored because they make no sense, or for want of room."""

    def observe(
        self, model: str, uncached_tokens: float, queued_tokens: float, ttft_s: float
    ) -> bool:
        """Takes one answer's time to first token; False if it was ignored."""
        sensible = (
            0 < uncached_tokens <= _MAX_TOKENS
            and 0 <= queued_tokens <= _MAX_TOKENS * 1024
            and isfinite(ttft_s)
            and 0 < ttft_s <= _MAX_TTFT_S
        )
        sums = self._sums.get(model)
        if not sensible or (sums is None and len(self._sums) >= MAX_TRACKED_MODELS):
            self.refused += 1
            return False
        if sums is None:
            sums = self._sums[model] = _Sums()
        x = np.array([1.0, uncached_tokens, queued_tokens])
        sums.add(x, ttft_s, 1 / (uncached_tokens + queued_tokens))
        return True

    def report(self) -> list[Drift]:
        """One entry for each model seen, in order of first sight; from any thread."""
        return [self._drift(model, sums) for model, sums in list(self._sums.items())]

    def _drift(self, model: str, sums: _Sums) -> Drift:
        measured = self.measured.get(model)
        solved = sums.solve() if sums.samples >= MIN_SAMPLES else None
        if solved is None:
            return Drift(
                model=model,
                measured_s_per_token=measured,
                samples=sums.samples,
                seconds_per_token=None,
                error_s_per_token=None,
                queue_s_per_token=None,
                drifted=False,
            )
        found, error = solved
        slope = float(found[1])
        drifted = measured is not None and (
            (slope > measured * DRIFT_RATIO and slope - _SURE * error > measured)
            or (slope < measured / DRIFT_RATIO and slope + _SURE * error < measured)
        )
        return Drift(
            model=model,
            measured_s_per_token=measured,
            samples=sums.samples,
            seconds_per_token=slope,
            error_s_per_token=error,
            queue_s_per_token=float(found[2]),
            drifted=drifted,
        )
