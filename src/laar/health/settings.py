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
    """Rules by which an endpoint is out, and comes back."""

    section: ClassVar = "health"
    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = True
    """Whether failures count. Without, an endpoint that fails fast looks idle and attracts the
    traffic."""
    consecutive_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Failures in a row that take an endpoint out. One can be chance, three in a row are not."""
    failing_share: Annotated[float, Gt(0), Le(1)] = 0.35
    """Share of failures among an endpoint's last dozen outcomes that takes it out. With about a
    third, an endpoint that fails every second request is found after some seven failures; one that
    fails one in ten stays, at its price."""
    half_life_s: Annotated[float, Ge(1), Le(86_400)] = 30.0
    """Seconds after which an outcome counts half. The default is about the time of a restart: older
    outcomes may be another process's."""
    probe: bool = True
    """Whether the picker sends an endpoint that is out a chat request of a few tokens before it
    risks a client's request. An endpoint that requires a key answers 401, from which nothing is
    learned."""
    first_trial_s: Annotated[float, Ge(0.05), Le(3600)] = 1.0
    """Seconds from taking an endpoint out to the first request on trial. Doubled each time it fails
    again, and five times as long after a hang. A short fault should cost a second."""
    longest_trial_s: Annotated[float, Ge(0.05), Le(3600)] = 30.0
    """Longest time between two trials, in seconds, plus a fifth of jitter. With 30 and the slow
    start after it, a healed endpoint is back within a minute."""
    slow_start_s: Annotated[float, Ge(0), Le(3600)] = 10.0
    """Seconds over which the price of a new or returning endpoint falls from five times to its own:
    its caches are cold, and another failure should cost little. 0: no slow start."""
    max_out_share: Annotated[float, Ge(0), Le(1)] = 0.7
    """Share of a request's candidates that may be out at once although they answer now and then;
    the least bad stay, at their price. A fleet that loses more than two thirds is more likely
    overloaded or misjudged than broken. Endpoints that only failed are out beyond this share. If
    all are out, all are tried."""
    overdue_s: Annotated[float, Ge(0.1), Le(3600)] = 2.0
    """Seconds of silence that never count as a hang. A longer silence counts if it exceeds the
    model's usual by three deviations while endpoints with the same model answer."""
    full_s: Annotated[float, Ge(0.05), Le(3600)] = 1.0
    """Seconds of pause for an endpoint that reports that it is full (429, a full queue) without
    retry-after; doubled while it stays full."""
    longest_full_s: Annotated[float, Ge(0.05), Le(3600)] = 30.0
    """Longest pause in seconds, whatever retry-after requests: engines empty their queues in
    seconds, and a wrong header must not cost an endpoint."""

    def __post_init__(self) -> None:
        """Raises SettingError for a value that cannot work."""
        check(self)
        for first, longest in (("first_trial_s", "longest_trial_s"), ("full_s", "longest_full_s")):
            if getattr(self, first) > getattr(self, longest):
                raise SettingError(f"health: {longest} must not be below {first}")
