"""The settings of health; its other thresholds are constants beside the code that they decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import Applies, check


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Rules by which an endpoint is out, and comes back."""

    section: ClassVar = "health"
    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = True
    """Whether failures count. Without, an endpoint that fails fast looks idle and attracts the
    traffic."""
    consecutive_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Failures in a row that take an endpoint out. One can be chance, three in a row are not."""
    probe: bool = True
    """Whether the picker sends an endpoint that is out a chat request of a few tokens before it
    risks a client's request. An endpoint that requires a key answers 401, from which nothing is
    learned."""
    longest_trial_s: Annotated[float, Ge(1), Le(3600)] = 30.0
    """Longest time between two trials, in seconds, plus a fifth of jitter. With 30 and the slow
    start after it, a healed endpoint is back within a minute."""

    def __post_init__(self) -> None:
        """Raise SettingError for a value that cannot work."""
        check(self)
