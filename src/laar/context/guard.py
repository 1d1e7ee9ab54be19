"""The proof that reordering pays, by route: a slice is left alone and compared.

A request is in the slice by a hash of its documents, so that a retry falls on the same side. The
measure is the engine's own: the share of prompt tokens that its usage says were cached. Reordering
goes off for a route when the gain, with two standard errors granted, stays below what is asked for;
it stays off until `reset`, since without treated requests nothing new can be learned.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GainGuard", "RouteGain", "RunningMean"]

MAX_ROUTES = 256
"""Routes come from the settings; this only keeps a mistake from growing."""


@dataclass(slots=True)
class RunningMean:
    """Mean of what was added, and its standard error squared (Welford)."""

    n: int = 0
    mean: float = 0.0
    _spread: float = 0.0

    def add(self, value: float) -> None:
        """Takes in one value."""
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self._spread += delta * (value - self.mean)

    def error_squared(self) -> float:
        """Of the mean; 0 while one value cannot tell."""
        return self._spread / (self.n * (self.n - 1)) if self.n > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGain:
    """What is known about a route: cached share of the prompt with and without the hook."""

    treated_share: float
    left_alone_share: float
    off: bool


class GainGuard:
    """Decides by route whether reordering goes on.

    Args:
        share: of requests left alone.
        min_gain: in cached share of the prompt.
        requests: left-alone requests to see before judging.
    """

    def __init__(self, *, share: float, min_gain: float, requests: int) -> None:
        self._slots = round(share * 10_000)
        self._min_gain = min_gain
        self._requests = requests
        self._arms: dict[str, tuple[RunningMean, RunningMean]] = {}
        self._off: set[str] = set()

    def holds_out(self, key: int) -> bool:
        """Whether the documents with this hash are in the slice."""
        return (key >> 20) % 10_000 < self._slots

    def is_off(self, route: str) -> bool:
        """Whether reordering was switched off for a route."""
        return route in self._off

    def record(self, route: str, *, held_out: bool, cached_share: float) -> None:
        """Takes in one answer's usage."""
        if route not in self._arms and len(self._arms) >= MAX_ROUTES:
            return
        treated, alone = self._arms.setdefault(route, (RunningMean(), RunningMean()))
        (alone if held_out else treated).add(min(1.0, max(0.0, cached_share)))
        if self._slots and min(alone.n, treated.n) >= self._requests:
            error = (treated.error_squared() + alone.error_squared()) ** 0.5
            if treated.mean - alone.mean + 2 * error < self._min_gain:
                self._off.add(route)

    def reset(self, route: str) -> None:
        """Forgets a route and switches it on again."""
        self._off.discard(route)
        self._arms.pop(route, None)

    def gains(self) -> dict[str, RouteGain]:
        """By route."""
        return {
            route: RouteGain(
                treated_share=treated.mean,
                left_alone_share=alone.mean,
                off=route in self._off,
            )
            for route, (treated, alone) in self._arms.items()
        }
