"""The hill-climb over the cost's weights: a (1+1) evolution strategy in log space.

Each trial perturbs every weight of the incumbent by an independent lognormal factor, clipped to its
floor and cap, and measures the result on one window. The step grows on success and shrinks on
failure so that it stays where one trial in five succeeds (Rechenberg). GORGO section 3, with these
differences, each because the published form was seen to go wrong:

* Windows are closed cohorts of the candidate's own decisions (see `windows`).
* Noise. The authors measured identical weights again and got large swings, and their incumbent
  keeps the luckiest score it ever had. Here the incumbent is measured again every few trials, and a
  win counts only when it repeats, against an incumbent measured just before; the second window's
  cost is the one kept. Interleaving the two would be cheaper but wrong: they share queues.
* Safety. A candidate whose slow requests or failures already exceed the limits from the incumbent's
  window is stopped at once and the incumbent serves again; any other candidate serves one window.
* The incumbent's weights are exported, never the proposal that happened to be live.
* The default objective counts the whole answer, and every weight has a floor and a cap.

A tuner on a live picker is an experiment on users; freeze it and serve the exported weights. Pure:
time is an argument, and a proposal is a function of the seed and the trial's number, so no
generator's state needs to survive a restart.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from laar.errors import SettingError
from laar.tuning.settings import SIGMA_MAX, TunerSettings
from laar.tuning.windows import Observed, Window, WindowScore, better

UNMEASURED = 0
"""Version of decisions that belong to no window."""

REMEASURE_EVERY = 4
"""Trials lost in a row before the incumbent is measured again: load drifts."""

GROWTH = 1.5
"""Step factor on success; on failure its fourth root, inverted, so one in five is the balance."""

SETTLING_SHARE = 8
"""One decision for each eight of the window lets the queues of other weights drain first."""

SLOW_RATIO = 1.5
LEAST_STRIKES = 3
STRIKES_SHARE = 0.03
"""A candidate is stopped when more than 3 requests, or 3 % of the window, took 1.5 times the
incumbent's p99, or failed beyond the incumbent's own share of failures."""

CORNER_DRAWS = 16
"""Draws until a candidate differs from the incumbent: with n weights in a corner of the box one
draw in 2**n is clipped back to it."""

LONGEST_GAP_S = 60.0
"""Time between two calls counts for at most this much, and never backwards: clocks jump."""

HISTORY = 64
"""Windows kept for the export."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a decision, and the tag for the request's `Observed`."""

    version: int
    values: Mapping[str, float]


class Tuner:
    """Climbs while requests flow.

    Args:
        settings: bounds and budgets.
        initial: the weights to start from, clipped to the bounds.

    Raises:
        SettingError: when the names differ from those in the bounds, or a weight is not positive.
    """

    def __init__(self, settings: TunerSettings, initial: Mapping[str, float]) -> None:
        self._settings = settings
        self._incumbent = _checked(initial, settings)
        self._baseline: WindowScore | None = None  # the incumbent's latest window
        self._remeasure = True
        self._candidate: dict[str, float] | None = None  # has won once and must repeat it
        self._sigma = settings.sigma
        self._trials = self._windows = self._lost_in_a_row = 0
        self._history: deque[WindowScore] = deque(maxlen=HISTORY)
        self._elapsed_s = self._since_s = 0.0  # own time; when the window opened or closed
        self._now: float | None = None
        self._window: Window | None = None
        self._open_next()

    def weights(self, now: float) -> Weights:
        """Return the weights for one decision; call it once for each: windows count them."""
        self._tick(now)
        window = self._window
        if window is None or window.closed:
            return self._resting
        counted = window.assign()
        if window.closed:
            self._since_s = self._elapsed_s
        return self._tagged if counted else self._settling

    def observe(self, sample: Observed, now: float) -> None:
        """Record the outcome of a request; those of other windows are ignored."""
        self._tick(now)
        window = self._window
        if window is None or sample.version != window.version:
            return
        window.add(sample)
        if window.role == "candidate" and self._breached(window):
            self._conclude(window, stopped=True)
        elif window.drained:
            self._conclude(window)

    def freeze(self) -> None:
        """Serve the incumbent from now on."""
        self._window = None
        self._resting = Weights(UNMEASURED, MappingProxyType(self._incumbent))

    @property
    def frozen(self) -> bool:
        """Whether the climb is over."""
        return self._window is None

    @property
    def sigma(self) -> float:
        """The step, as the standard deviation of the logarithm of a weight."""
        return self._sigma

    @property
    def under_way(self) -> dict[str, object]:
        """The weights of the next decision, and their role: a window's, else the incumbent's."""
        window = self._window
        if window is None:
            return {"role": "frozen", "weights": dict(self._incumbent)}
        # A closed window only waits for its answers, and the incumbent serves meanwhile.
        weights = self._incumbent if window.closed else window.weights
        return {
            "role": window.role,
            "weights": dict(weights),
            "version": window.version,
            "decided": max(window.assigned, 0),
            "answered": window.finished,
        }

    def export(self) -> dict[str, object]:
        """Return the best weights found and the windows they rest on, as plain values."""
        return {
            "weights": dict(self._incumbent),
            "objective": self._settings.objective,
            "cost_s": self._baseline.cost_s if self._baseline else None,
            "frozen": self.frozen,
            "trials": self._trials,
            "windows": [score.to_dict() for score in self._history],
        }

    def _tick(self, now: float) -> None:
        """Let time pass: end a window that has waited too long for decisions or outcomes."""
        if not math.isfinite(now):
            return
        if self._now is not None:
            self._elapsed_s += min(max(now - self._now, 0.0), LONGEST_GAP_S)
        self._now = now
        window = self._window
        if window is None:
            return
        if not window.closed and self._elapsed_s - self._since_s > self._settings.window_s:
            window.closed, self._since_s = True, self._elapsed_s
        if window.drained or (
            window.closed and self._elapsed_s - self._since_s > self._settings.drain_s
        ):
            self._conclude(window)

    def _breached(self, window: Window) -> bool:
        """Return whether the candidate can no longer end within the incumbent's limits."""
        baseline = self._baseline
        if baseline is None:
            return False
        strikes = max(LEAST_STRIKES, STRIKES_SHARE * window.size)
        return (
            window.failures - baseline.failure_share * window.size > strikes
            or window.slower_than(SLOW_RATIO * baseline.e2e_p99_s) > strikes
        )

    def _conclude(self, window: Window, *, stopped: bool = False) -> None:
        """Draw the window's lesson and open the next one."""
        self._windows += 1
        score = window.score(self._settings.objective, stopped=stopped)
        if stopped:
            outcome = self._lose("stopped", remeasure=True)
        elif math.isnan(score.cost_s):
            # Too few answers may be the fleet's doing: see how the incumbent fares.
            self._candidate, self._remeasure, outcome = None, True, "no evidence"
        elif window.role == "incumbent":
            self._baseline, self._remeasure, outcome = score, False, "measured"
        else:
            outcome = self._judge(score)
        self._history.append(replace(score, outcome=outcome))
        if self._sigma < self._settings.sigma_min or self._windows >= self._settings.max_windows:
            self.freeze()
        else:
            self._open_next()

    def _judge(self, score: WindowScore) -> str:
        """Compare a candidate's window with the incumbent's latest."""
        baseline = self._baseline
        if baseline is None or not better(score.cost_s, baseline.cost_s, self._settings.tolerance):
            return self._lose("rejected", remeasure=self._lost_in_a_row + 1 >= REMEASURE_EVERY)
        if self._candidate is None:
            # The rematch is against an incumbent of the same minutes.
            self._candidate = score.weights
            self._remeasure = baseline.version != score.version - 1
            return "won once"
        self._incumbent, self._baseline, self._candidate = score.weights, score, None
        self._sigma = min(self._sigma * GROWTH, SIGMA_MAX)
        self._lost_in_a_row = 0
        return "accepted"

    def _lose(self, outcome: str, *, remeasure: bool) -> str:
        self._candidate, self._remeasure = None, remeasure
        self._sigma *= GROWTH**-0.25
        self._lost_in_a_row = 0 if remeasure else self._lost_in_a_row + 1
        return outcome

    def _open_next(self) -> None:
        """Start the next window: the incumbent's when it is due, else a candidate's."""
        if self._remeasure:
            role, weights = "incumbent", self._incumbent
        else:
            role, weights = "candidate", self._candidate or self._propose()
        size = self._settings.window
        window = Window(self._windows + 1, role, weights, size, size // SETTLING_SHARE)
        live = MappingProxyType(weights)
        self._resting = Weights(UNMEASURED, MappingProxyType(self._incumbent))
        self._settling, self._tagged = Weights(UNMEASURED, live), Weights(window.version, live)
        self._window, self._since_s = window, self._elapsed_s

    def _propose(self) -> dict[str, float]:
        """Return the next candidate, never the incumbent, as clipping in a corner would."""
        self._trials += 1
        rng = random.Random(f"{self._settings.seed}:{self._trials}")
        proposal = self._incumbent
        for _ in range(CORNER_DRAWS):
            proposal = {
                name: min(max(weight * math.exp(rng.gauss(0.0, self._sigma)), floor), cap)
                for name, weight in self._incumbent.items()
                for floor, cap in (self._settings.bounds[name],)
            }
            if proposal != self._incumbent:
                break
        return proposal


def _checked(weights: Mapping[str, float], settings: TunerSettings) -> dict[str, float]:
    """Return weights with exactly the bounds' names, positive, clipped to the bounds."""
    if set(weights) != set(settings.bounds):
        names = ", ".join(settings.bounds)
        raise SettingError(
            f"tuner.initial: must have exactly the weights in tuner.bounds ({names})"
        )
    checked = {}
    for name, (floor, cap) in settings.bounds.items():
        if not 0.0 < weights[name] < math.inf:
            raise SettingError(f"tuner.initial.{name}: must be a positive number")
        checked[name] = min(max(weights[name], floor), cap)
    return checked
