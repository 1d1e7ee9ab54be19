"""Thresholds of what counts as failing, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HealthSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When an endpoint is out, and how it comes back.

    Args:
        enabled: off, no outcome changes a decision.
        consecutive_failures: failures in a row that open an endpoint's breaker.
        failing_share: share of the last dozen outcomes that opens it, in 0..1.
        half_life_s: an outcome counts half after so long.
        probe: a question of our own goes ahead of a trial.
        first_trial_s: from the opening to the first trial; doubled at each failure after it.
        longest_trial_s: the longest time between two trials.
        slow_start_s: an endpoint that is new or back has its full share after so long.
        max_out_share: share of the candidates that may be out at once although they answer now and
            then, in 0..1.
        overdue_s: silence shorter than this never counts as a hang.
        full_s: an endpoint that is full and says no time gets nothing for so long.
        longest_full_s: bound of what ``retry-after`` may ask for.
    """

    enabled: bool = True
    consecutive_failures: int = 3
    failing_share: float = 0.35
    half_life_s: float = 30.0
    probe: bool = True
    first_trial_s: float = 1.0
    longest_trial_s: float = 30.0
    slow_start_s: float = 10.0
    max_out_share: float = 0.7
    overdue_s: float = 2.0
    full_s: float = 1.0
    longest_full_s: float = 30.0
