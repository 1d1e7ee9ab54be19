"""Answers that are complete while their streams stay open.

A server may keep a stream open after the last event, for its client to close or for ever. Such a
request is no load from its last event on. After a moment, in which nearly all streams end, nothing
more is expected of it.
"""

from __future__ import annotations

from collections.abc import Callable

from laar.core.decision import Decision

_MOMENT_S = 0.3


class LeftOpen:
    """Remembers complete answers until they are settled.

    Args:
        release: takes an answer off its endpoint's load.
        forget: ends what awaits the end of its stream.
    """

    def __init__(
        self, release: Callable[[Decision], None], forget: Callable[[Decision, float], None]
    ) -> None:
        self._release, self._forget = release, forget
        self.waiting: dict[str, tuple[Decision, float]] = {}
        """Answers whose streams may end soon, and when they were complete, by decision."""
        self.released: set[str] = set()

    def finished(self, decision: Decision, now: float) -> None:
        """Record that an answer is complete; only the first call has an effect."""
        flight = decision.flight
        if flight.answering and not flight.settled and decision.id not in self.released:
            self.waiting[decision.id] = decision, now
            self.released.add(decision.id)
            self._release(decision)

    def sweep(self, now: float) -> None:
        """Forget what has been open for a moment."""
        while self.waiting:
            name, (decision, at) = next(iter(self.waiting.items()))
            if now - at < _MOMENT_S:
                return
            del self.waiting[name]
            self._forget(decision, now)

    def settled(self, decision: Decision) -> bool:
        """Forget a request; return whether it was released."""
        self.waiting.pop(decision.id, None)
        was = decision.id in self.released
        self.released.discard(decision.id)
        return was
