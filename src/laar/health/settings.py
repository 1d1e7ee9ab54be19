"""The settings of health; its other thresholds are constants next to the code that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import Applies, check


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Rules by which an endpoint is excluded and returns."""

    section: ClassVar = "health"
    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = True
    """Whether failures count. If not, an endpoint that fails fast looks idle and attracts
    traffic."""
    consecutive_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Consecutive failures that exclude an endpoint. One may be chance, but not three in a row."""
    probe: bool = True
    """Whether the picker sends an excluded endpoint a chat request of a few tokens before it risks
    a client's request. An endpoint that requires a key answers 401, which proves nothing."""
    longest_trial_s: Annotated[float, Ge(1), Le(3600)] = 30.0
    """Longest time between two trials, in seconds, plus a fifth of jitter. With 30 and the slow
    start after it, a recovered endpoint is back within a minute."""

    def __post_init__(self) -> None:
        """Raise SettingError for invalid values."""
        check(self)
