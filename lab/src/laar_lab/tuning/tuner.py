"""Hill climbing over the cost's weights: a (1+1) evolution strategy in log space.

Each trial perturbs every weight of the incumbent by an independent lognormal factor, clipped to its
floor and cap, and measures the result on one window. The step grows on success and shrinks on
failure so that one trial in five succeeds (Rechenberg). This is section 3 of the GORGO paper, with
these differences, each made because the published form was observed to fail:

* Windows are closed cohorts of the candidate's own decisions (see `windows`).
* Noise. The authors saw large swings between measurements of identical weights, and their incumbent
  keeps its luckiest score. Here the incumbent is remeasured every few trials, and a win counts only
  if it is repeated against an incumbent measured just before; the second window's cost is kept. It
  would be cheaper to interleave the two, but wrong, since they share queues.
* A candidate whose slow requests or failures exceed the limits from the incumbent's window is
  stopped immediately and the incumbent serves again; any other candidate serves one window.
* The result is the incumbent's weights, never the proposal that happens to be live.
* Every weight has a floor and a cap.

There is no I/O and no clock: time is an argument, and a proposal is a function of the seed and the
trial's number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from laar_lab.tuning.windows import Observed, Window, WindowScore

UNMEASURED = 0
"""Version of decisions that belong to no window."""

REMEASURE_EVERY = 4
"""Number of consecutive lost trials before the incumbent is remeasured, since load drifts."""

GROWTH = 1.5
"""Step factor on success; on failure, its inverse fourth root. One success in five is neutral."""

SETTLING_SHARE = 8
"""For every eight decisions in a window, one more precedes it, so that earlier queues drain."""

SLOW_RATIO = 1.5
LEAST_STRIKES = 3
STRIKES_SHARE = 0.03
"""A candidate is stopped once more than max(3, 3 % of the window) requests took over 1.5 times the
incumbent's p99, or once it has that many more failures than the incumbent's failure share predicts.
"""

CORNER_DRAWS = 16
"""Maximum number of samples drawn for a candidate that differs from the incumbent: with n weights
in a corner of the bounds, one sample in 2**n is clipped back to the incumbent."""

SIGMA_MAX = 1.0
"""Maximum sigma; its steps are typically a factor of e, and wider ones exceed usual bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerSettings:
    """Settings for the hill climb.

    Args:
        bounds: floor and cap of each tuned weight.
        objective: what to minimize, one of `laar_lab.tuning.windows.OBJECTIVES`.
        window: requests per measurement of one set of weights. A p95 needs at least 20; the
            published runs used 64 to 256.
        max_windows: windows after which the climb ends.
        tolerance: relative improvement required of a candidate; smaller differences count as noise.
        sigma: initial step: the standard deviation of a weight's logarithm; 0.7 is a factor of two.
        sigma_min: step below which the tuner freezes.
        drain_s: seconds from a window's last decision until missing outcomes count as failures.
        seed: random seed of all proposals.
    """

    bounds: Mapping[str, tuple[float, float]]
    objective: str = "e2e-p95"
    window: int = 128
    max_windows: int = 1000
    tolerance: float = 0.005
    sigma: float = 0.7
    sigma_min: float = 0.05
    drain_s: float = 120.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a decision, and the version tag for its `Observed`."""

    version: int
    values: Mapping[str, float]


class Tuner:
    """Searches for better weights while requests flow.

    Args:
        settings: bounds and budgets.
        initial: the weights to start from, clipped to the bounds. A disabled term starts at its
            floor, since the climb is logarithmic and can't use zero.

    Attributes:
        sigma: the step: the standard deviation of a weight's logarithm.
        history: the scores of all windows.
    """

    def __init__(self, settings: TunerSettings, initial: Mapping[str, float]) -> None:
        self.settings = settings
        self._incumbent: Mapping[str, float] = {
            name: min(max(initial[name], floor), cap)
            for name, (floor, cap) in settings.bounds.items()
        }
        self._baseline: WindowScore | None = None  # the incumbent's latest window
        self._remeasure = True
        self._candidate: Mapping[str, float] | None = None  # has won once and must win again
        self.sigma = settings.sigma
        self._trials = self._windows = self._lost_in_a_row = 0
        self.history: list[WindowScore] = []
        self._closed_s = 0.0
        self._window: Window | None = None
        self._open_next()

    def weights(self, now: float) -> Weights:
        """Return a decision's weights. Call this once per decision, since windows count calls."""
        self._end_drained(now)
        window = self._window
        if window is None or window.closed:
            return Weights(UNMEASURED, self._incumbent)
        counted = window.assign()
        self._closed_s = now
        return Weights(window.version if counted else UNMEASURED, window.weights)

    def observe(self, sample: Observed, now: float) -> None:
        """Record the outcome of a request; ignore it if it belongs to another window."""
        self._end_drained(now)
        window = self._window
        if window is None or sample.version != window.version:
            return
        window.add(sample)
        stopped = window.role == "candidate" and self._breached(window)
        if stopped or window.drained:
            self._conclude(window, stopped=stopped)

    def freeze(self) -> None:
        """End the climb, and serve the incumbent from now on."""
        self._window = None

    @property
    def frozen(self) -> bool:
        """Whether the climb is over."""
        return self._window is None

    @property
    def best(self) -> Mapping[str, float]:
        """The best weights found."""
        return self._incumbent

    def _end_drained(self, now: float) -> None:
        """End a window that has all its outcomes, or has waited too long for them."""
        window = self._window
        if window is None or not window.closed:
            return
        if window.drained or now - self._closed_s > self.settings.drain_s:
            self._conclude(window)

    def _breached(self, window: Window) -> bool:
        """Return whether the candidate already exceeds the incumbent's limits."""
        baseline = self._baseline
        if baseline is None:
            return False
        strikes = max(LEAST_STRIKES, STRIKES_SHARE * window.size)
        return (
            window.failures - baseline.failure_share * window.size > strikes
            or window.slower_than(SLOW_RATIO * baseline.e2e_p99_s) > strikes
        )

    def _conclude(self, window: Window, *, stopped: bool = False) -> None:
        """Evaluate the window and open the next one."""
        self._windows += 1
        score = window.score(self.settings.objective, stopped=stopped)
        if stopped:
            outcome = self._lose("stopped", remeasure=True)
        elif math.isnan(score.cost_s):
            # Too few answers may be the fleet's fault: remeasure the incumbent.
            self._candidate, self._remeasure, outcome = None, True, "no evidence"
        elif window.role == "incumbent":
            self._baseline, self._remeasure, outcome = score, False, "measured"
        else:
            outcome = self._judge(score)
        self.history.append(replace(score, outcome=outcome))
        if self.sigma < self.settings.sigma_min or self._windows >= self.settings.max_windows:
            self.freeze()
        else:
            self._open_next()

    def _judge(self, score: WindowScore) -> str:
        """Compare a candidate's window with the incumbent's latest window."""
        baseline, tolerance = self._baseline, self.settings.tolerance
        if baseline is None or score.cost_s >= baseline.cost_s - tolerance * baseline.cost_s:
            return self._lose("rejected", remeasure=self._lost_in_a_row + 1 >= REMEASURE_EVERY)
        if self._candidate is None:
            # Repeat it against an incumbent measured just before: load and caches change.
            self._candidate, self._remeasure = score.weights, True
            return "won once"
        self._incumbent, self._baseline, self._candidate = score.weights, score, None
        self.sigma = min(self.sigma * GROWTH, SIGMA_MAX)
        self._lost_in_a_row = 0
        return "accepted"

    def _lose(self, outcome: str, *, remeasure: bool) -> str:
        self._candidate, self._remeasure = None, remeasure
        self.sigma *= GROWTH**-0.25
        self._lost_in_a_row = 0 if remeasure else self._lost_in_a_row + 1
        return outcome

    def _open_next(self) -> None:
        """Start the next window: the incumbent's if it is due, otherwise a candidate's."""
        if self._remeasure:
            role, weights = "incumbent", self._incumbent
        else:
            role, weights = "candidate", self._candidate or self._propose()
        size = self.settings.window
        self._window = Window(self._windows + 1, role, weights, size, -(size // SETTLING_SHARE))

    def _propose(self) -> Mapping[str, float]:
        """Return the next candidate; draw again if clipping yields the incumbent."""
        self._trials += 1
        rng = random.Random(f"{self.settings.seed}:{self._trials}")
        for _ in range(CORNER_DRAWS):
            proposal = {
                name: min(max(weight * math.exp(rng.gauss(0.0, self.sigma)), floor), cap)
                for name, weight in self._incumbent.items()
                for floor, cap in (self.settings.bounds[name],)
            }
            if proposal != self._incumbent:
                return proposal
        return self._incumbent
