"""Settings for the tuner: weights, objective and duration of the climb."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import FIXED, Applies
from laar.errors import SettingError, unknown
from laar.tuning.windows import OBJECTIVES

SIGMA_MAX = 1.0
"""Maximum sigma; its steps are typically a factor of e, and wider ones exceed usual bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerSettings:
    """Settings for the hill climb.

    Raises:
        SettingError: the bounds or the objective are not valid.
    """

    section: ClassVar = "tuner"
    applies: ClassVar = Applies.AFTER_RESTART

    bounds: Mapping[str, tuple[float, float]]
    """Floor and cap of each tuned weight."""
    objective: str = "e2e-p95"
    """Objective to minimize: ttft-p95, e2e-p95 or ttft-and-e2e-p95. End-to-end time by default,
    since it is known for every request; times to first token are known only for answers that are
    read (bodies.sample_answers)."""
    window: Annotated[int, Ge(20), Le(100_000)] = 128
    """Requests per measurement of one set of weights. A p95 needs at least 20; the published runs
    used 64 to 256."""
    max_windows: Annotated[int, Ge(1), Le(1_000_000)] = 1000
    """Windows after which the climb ends."""
    tolerance: Annotated[float, FIXED, Ge(0), Le(0.5)] = 0.005
    """Relative improvement required of a candidate; smaller differences count as noise."""
    sigma: Annotated[float, FIXED, Ge(1e-4), Le(SIGMA_MAX)] = 0.7
    """Initial step: the standard deviation of a weight's logarithm; 0.7 is a factor of two."""
    sigma_min: Annotated[float, FIXED, Ge(1e-4), Le(SIGMA_MAX)] = 0.05
    """Step below which the tuner freezes."""
    window_s: Annotated[float, FIXED, Ge(1)] = 900.0
    """Seconds after which a window accepts no more decisions."""
    drain_s: Annotated[float, FIXED, Ge(1)] = 120.0
    """Seconds from a window's last decision until missing outcomes count as failures."""
    seed: Annotated[int, FIXED] = 0
    """Random seed of all proposals."""

    def __post_init__(self) -> None:
        if not self.bounds:
            raise SettingError("tuner.bounds: empty; name at least one weight with [floor, cap]")
        for name, (floor, cap) in self.bounds.items():
            if not 0.0 < floor <= cap < math.inf:
                raise SettingError(
                    f"tuner.bounds.{name}: [{floor}, {cap}] must have 0 < floor <= cap"
                )
        if self.objective not in OBJECTIVES:
            raise SettingError(unknown("tuner.objective", self.objective, OBJECTIVES))
