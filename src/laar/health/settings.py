"""Thresholds of what counts as failing, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from laar.declaring import Applies, check
from laar.errors import SettingError

__all__ = ["HealthSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When an endpoint is out, and how it comes back."""

    section: ClassVar = "health"
    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = True
    """Whether outcomes count: off, an endpoint that fails fast looks idle and draws the traffic."""
    consecutive_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Failures in a row that take an endpoint out. One can be chance, three in a row are not."""
    failing_share: Annotated[float, Gt(0), Le(1)] = 0.35
    """Share of an endpoint's last dozen outcomes that takes it out. A third: one that fails every
    second request is found in about seven failures, one in ten is left to its price."""
    half_life_s: Annotated[float, Ge(1), Le(86_400)] = 30.0
    """Seconds after which an outcome counts half. About a restart: older news is of another
    process."""
    probe: bool = True
    """Whether the picker sends an endpoint that is out a chat request of one token before it risks
    a client's. Where keys are needed it gets 401, which tells nothing."""
    first_trial_s: Annotated[float, Ge(0.05), Le(3600)] = 1.0
    """Seconds from taking an endpoint out to the first request on trial; doubled each time it fails
    again, five times as long after a hang. A hiccup should cost a second."""
    longest_trial_s: Annotated[float, Ge(0.05), Le(3600)] = 30.0
    """Longest time between two trials, and a fifth of jitter. Thirty and the slow start behind it
    bring a healed endpoint back within a minute."""
    slow_start_s: Annotated[float, Ge(0), Le(3600)] = 10.0
    """Seconds over which the price of an endpoint that is new or back falls to its own, from five
    times as much: caches are cold, and a relapse should cost little. 0 starts at once."""
    max_out_share: Annotated[float, Ge(0), Le(1)] = 0.7
    """Share of a request's candidates that may be out at once though they answer now and then; the
    least bad stay, at their price. A fleet that loses more than two thirds is rather overloaded or
    misjudged than broken. Those that did nothing but fail are out beyond it, and when all are, all
    are tried."""
    overdue_s: Annotated[float, Ge(0.1), Le(3600)] = 2.0
    """Silence below it never counts as a hang. Above it, what counts is three deviations more than
    usual for the model, while siblings go on."""
    full_s: Annotated[float, Ge(0.05), Le(3600)] = 1.0
    """Pause of an endpoint that says it is full (429, a full queue) and no retry-after; doubled
    while it stays so."""
    longest_full_s: Annotated[float, Ge(0.05), Le(3600)] = 30.0
    """Longest pause, whatever retry-after asks for: engines empty their queues in seconds, and a
    wrong header must not cost a replica."""

    def __post_init__(self) -> None:
        """Raises SettingError for a value that cannot work."""
        check(self)
        for first, longest in (("first_trial_s", "longest_trial_s"), ("full_s", "longest_full_s")):
            if getattr(self, first) > getattr(self, longest):
                raise SettingError(f"health: {longest} must not be below {first}")
