"""Measure the effect of a set of weights on a closed cohort of requests, as one number.

A window is a cohort: the first ``size`` decisions made with its weights, tagged with the window's
version, and all of their outcomes, however late. That avoids two mistakes. The GORGO paper takes
the last 128 completions regardless of their weights, so with its hop of 32 three quarters of a
window belong to other weights. And a window that closes after a number of *completions* omits the
slowest requests, which rewards weights that make some requests very slow. While a cohort drains,
the incumbent's weights serve, so a candidate serves no longer than its window.

Costs are in seconds, lower is better. GORGO maximizes a negative latency, where ``best * (1 +
tol)`` accepts candidates that are *worse* by the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_Latencies = npt.NDArray[np.float64]


def _p95(latencies_s: _Latencies) -> float:
    return float(np.quantile(latencies_s, 0.95))


OBJECTIVES: dict[str, Callable[[_Latencies, _Latencies], float]] = {
    "ttft-and-e2e-p95": lambda ttft_s, e2e_s: (_p95(ttft_s) + _p95(e2e_s)) / 2,
    "e2e-p95": lambda _, e2e_s: _p95(e2e_s),
    "ttft-p95": lambda ttft_s, _: _p95(ttft_s),
}
"""Functions that compute a cost in seconds from times to first token and end-to-end times. The last
one is the published objective, which can be gamed: unlike the others, it ignores what hoarding
requests on one endpoint costs in decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The outcome of one request.

    Args:
        version: `Weights.version` at the decision.
        ttft_s: time to first token; the total time if the answer was not streamed.
        e2e_s: time to the end of the answer.
        ok: whether there was an answer.
    """

    version: int
    ttft_s: float
    e2e_s: float
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowScore:
    """One window's result. ``cost_s`` is NaN if fewer than half of the requests were answered."""

    role: str
    weights: Mapping[str, float]
    cost_s: float
    e2e_p99_s: float
    failure_share: float
    outcome: str = ""


@dataclass(slots=True, eq=False)
class Window:
    """A cohort being filled, then drained.

    Args:
        version: tag of its decisions.
        role: ``incumbent`` or ``candidate``.
        weights: weights used by its decisions.
        size: decisions in the cohort.
        assigned: decisions so far; below 0 before the cohort starts, while queues from other
            weights drain.
        closed: it accepts no more decisions.
        failures: failed requests of the cohort.
    """

    version: int
    role: str
    weights: Mapping[str, float]
    size: int
    assigned: int
    closed: bool = False
    failures: int = 0
    _ttft_s: list[float] = field(default_factory=list)
    _e2e_s: list[float] = field(default_factory=list)

    def assign(self) -> bool:
        """Count a decision; return whether it belongs to the cohort."""
        self.assigned += 1
        self.closed = self.assigned >= self.size
        return self.assigned > 0

    def add(self, sample: Observed) -> None:
        """Record an outcome of the cohort."""
        if sample.ok:
            self._ttft_s.append(sample.ttft_s)
            self._e2e_s.append(sample.e2e_s)
        else:
            self.failures += 1

    @property
    def finished(self) -> int:
        """Number of outcomes so far."""
        return len(self._e2e_s) + self.failures

    @property
    def drained(self) -> bool:
        """Whether all outcomes have arrived."""
        return self.closed and self.finished >= self.assigned

    def slower_than(self, e2e_s: float) -> int:
        """Return the number of requests with a longer end-to-end time."""
        return sum(value > e2e_s for value in self._e2e_s)

    def score(self, objective: str, *, stopped: bool = False) -> WindowScore:
        """Summarize the cohort; missing outcomes are failures, unless it was `stopped`.

        The objective over the answers is divided by the share of requests that were answered. This
        gives the time to an answer if failed requests are retried until they succeed.
        """
        due, answers = self.finished if stopped else max(self.assigned, 0), len(self._e2e_s)
        cost = e2e_p99 = math.nan
        if 2 * answers >= self.size:
            ttft_s, e2e_s = np.array(self._ttft_s), np.array(self._e2e_s)
            e2e_p99 = float(np.quantile(e2e_s, 0.99))
            cost = OBJECTIVES[objective](ttft_s, e2e_s) * due / answers
        return WindowScore(
            role=self.role,
            weights=self.weights,
            cost_s=cost,
            e2e_p99_s=e2e_p99,
            failure_share=(due - answers) / due if due else 0.0,
        )
