"""Settings of the tuner: what it climbs over, by which measure, and for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import FIXED, Applies, check
from laar.errors import SettingError, unknown
from laar.tuning.windows import OBJECTIVES

SIGMA_MAX = 1.0
"""A factor of e: wider jumps leave the usual boxes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerSettings:
    """How to climb.

    Raises:
        SettingError: naming the setting and its range.
    """

    section: ClassVar = "tuner"
    applies: ClassVar = Applies.AFTER_RESTART

    bounds: Mapping[str, tuple[float, float]]
    """Floor and cap of each weight that is tuned."""
    objective: str = "e2e-p95"
    """Objective to minimise: ttft-p95, e2e-p95 or ttft-and-e2e-p95. Whole answers by default, since
    every request has that time; first tokens are seen only in answers that are read
    (bodies.sample_answers)."""
    window: Annotated[int, Ge(20), Le(100_000)] = 128
    """Requests on which one set of weights is measured. A p95 needs 20 at least, and the published
    runs had 64 to 256."""
    max_windows: Annotated[int, Ge(1), Le(1_000_000)] = 1000
    """Windows after which the climb ends."""
    tolerance: Annotated[float, FIXED, Ge(0), Le(0.5)] = 0.005
    """Part by which a candidate must be better; below it differences are noise."""
    sigma: Annotated[float, FIXED, Ge(1e-4), Le(SIGMA_MAX)] = 0.7
    """First step, standard deviation of the logarithm of a weight; 0.7 is a factor of two."""
    sigma_min: Annotated[float, FIXED, Ge(1e-4), Le(SIGMA_MAX)] = 0.05
    """The tuner freezes when the step falls below."""
    window_s: Annotated[float, FIXED, Ge(1)] = 900.0
    """A window takes no more decisions after this long."""
    drain_s: Annotated[float, FIXED, Ge(1)] = 120.0
    """Outcomes that come later than this after the last decision are failures."""
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
        check(self)
        if self.sigma < self.sigma_min:
            raise SettingError(f"tuner.sigma: {self.sigma} must not be below sigma_min")
