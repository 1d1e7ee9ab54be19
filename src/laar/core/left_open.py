"""Answers that are complete while their streams stay open.

A server may keep a stream open after the last event, for its client to close or for ever. Such a
request is no load: after a moment, in which nearly all streams end, its endpoint is rid of it.
"""

from __future__ import annotations

from collections.abc import Callable

from laar.core.decision import Decision

_MOMENT_S = 0.05


class LeftOpen:
    """Remembers complete answers until they are settled; `release` takes one off the load."""

    def __init__(self, release: Callable[[Decision, float], None]) -> None:
        self._release = release
        self.waiting: dict[str, tuple[Decision, float]] = {}
        """Complete answers, and when they were, by the decisions' ids."""
        self.released: set[str] = set()

    def finished(self, decision: Decision, now: float) -> None:
        """Record that an answer is complete; only the first call has an effect."""
        flight = decision.flight
        if flight.answering and not flight.settled and decision.id not in self.released:
            self.waiting.setdefault(decision.id, (decision, now))

    def sweep(self, now: float) -> None:
        """Release what has been open for a moment."""
        while self.waiting:
            name, (decision, at) = next(iter(self.waiting.items()))
            if now - at < _MOMENT_S:
                return
            del self.waiting[name]
            self.released.add(name)
            self._release(decision, now)

    def settled(self, decision: Decision) -> bool:
        """Forget a request; return whether it was released."""
        self.waiting.pop(decision.id, None)
        was = decision.id in self.released
        self.released.discard(decision.id)
        return was
