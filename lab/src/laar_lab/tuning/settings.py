"""Settings for the tuner: weights, objective and duration of the climb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laar.errors import SettingError, unknown
from laar_lab.tuning.windows import OBJECTIVES

SIGMA_MAX = 1.0
"""Maximum sigma; its steps are typically a factor of e, and wider ones exceed usual bounds."""

TUNABLE = {"k_rtt": (0.005, 2.0), "k_queue": (0.02, 2.0), "k_delay": (0.02, 2.0)}
"""Weights of the cost, each with its floor and cap. No floor is zero, since a tuner that can switch
a term off will eventually do so: its objective does not measure what the term protects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerSettings:
    """Settings for the hill climb.

    Args:
        bounds: floor and cap of each tuned weight.
        objective: what to minimize, one of `OBJECTIVES`.
        window: requests per measurement of one set of weights. A p95 needs at least 20; the
            published runs used 64 to 256.
        max_windows: windows after which the climb ends.
        tolerance: relative improvement required of a candidate; smaller differences count as noise.
        sigma: initial step: the standard deviation of a weight's logarithm; 0.7 is a factor of two.
        sigma_min: step below which the tuner freezes.
        drain_s: seconds from a window's last decision until missing outcomes count as failures.
        seed: random seed of all proposals.

    Raises:
        SettingError: the objective is unknown.
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

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SettingError(unknown("objective", self.objective, OBJECTIVES))
