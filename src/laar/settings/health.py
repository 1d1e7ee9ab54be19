"""When an endpoint counts as failing, and how it comes back."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from laar.health import HealthSettings
from laar.settings.section import Applies, Section

__all__ = ["HealthSection"]


class HealthSection(Section):
    """Endpoints that fail: what is learned from outcomes, and the breaker."""

    applies: ClassVar = Applies.AT_ONCE

    enabled: bool = Field(
        True,
        description="Whether outcomes count: off, an endpoint that fails fast looks idle and draws "
        "the traffic.",
    )
    consecutive_failures: int = Field(
        3,
        ge=1,
        le=1000,
        description="Failures in a row that take an endpoint out. One can be chance, three in a "
        "row are not.",
    )
    failing_share: float = Field(
        0.35,
        gt=0,
        le=1,
        description="Share of an endpoint's last dozen outcomes that takes it out. A third: one "
        "that fails every second request is found in about seven failures, one in ten is left "
        "to its price.",
    )
    half_life_s: float = Field(
        30.0,
        ge=1,
        le=86_400,
        description="Seconds after which an outcome counts half. About a restart: older news is "
        "of another process.",
    )
    probe: bool = Field(
        True,
        description="Whether the picker sends an endpoint that is out a chat request of one token "
        "before it risks a client's. Where keys are needed it gets 401, which tells nothing.",
    )
    first_trial_s: float = Field(
        1.0,
        ge=0.05,
        le=3600,
        description="Seconds from taking an endpoint out to the first request on trial; doubled "
        "each time it fails again, five times as long after a hang. A hiccup should cost a second.",
    )
    longest_trial_s: float = Field(
        30.0,
        ge=0.05,
        le=3600,
        description="Longest time between two trials, and a fifth of jitter. Thirty and the slow "
        "start behind it bring a healed endpoint back within a minute.",
    )
    slow_start_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="Seconds over which the price of an endpoint that is new or back falls to its "
        "own, from five times as much: caches are cold, and a relapse should cost little. 0 "
        "starts at once.",
    )
    max_out_share: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Share of a request's candidates that may be out at once though they answer "
        "now and then; the least bad stay, at their price. A fleet that loses more than two thirds "
        "is rather overloaded or misjudged than broken. Those that did nothing but fail are out "
        "beyond it, and when all are, all are tried.",
    )
    overdue_s: float = Field(
        2.0,
        ge=0.1,
        le=3600,
        description="Silence below it never counts as a hang. Above it, what counts is three "
        "deviations more than usual for the model, while siblings go on.",
    )
    full_s: float = Field(
        1.0,
        ge=0.05,
        le=3600,
        description="Pause of an endpoint that says it is full (429, a full queue) and no "
        "retry-after; doubled while it stays so.",
    )
    longest_full_s: float = Field(
        30.0,
        ge=0.05,
        le=3600,
        description="Longest pause, whatever retry-after asks for: engines empty their queues in "
        "seconds, and a wrong header must not cost a replica.",
    )

    @model_validator(mode="after")
    def _longest_is_longer(self) -> HealthSection:
        for first, longest in (("first_trial_s", "longest_trial_s"), ("full_s", "longest_full_s")):
            if getattr(self, first) > getattr(self, longest):
                raise ValueError(f"{longest} must not be below {first}")
        return self

    @property
    def breaker(self) -> HealthSettings:
        """Health's part."""
        return HealthSettings(**self.model_dump())
