"""Which models refuse their clients for lack of room, as clients see it.

A model is full while at least half of its latest requests end in a refusal (429, 529, or a 503 that
says so), be it an engine's or laar's own. A few are normal, since clients try again.
"""

from __future__ import annotations

from collections.abc import Iterator

from laar.core.decision import Completion, Decision
from laar.health.kinds import FULL_STATUSES
from laar.latest import Latest

MAYBE_FULL = (*FULL_STATUSES, 503)
_MODELS = 256
"""Maximum number of models that are remembered."""
_WINDOW, _LEAST = 16.0, 3.0
"""Effective number of latest requests, and refusals that are a few."""
_QUIET_S = 10.0
"""Seconds without a refusal after which nobody asks any more, or all are served."""


class Full:
    """Counts each model's refusals, and its other answers from the first one on.

    `total` is the number of all refusals so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self.known: Latest[str, tuple[float, float, float]] = Latest(_MODELS)
        """Recent refusals and other answers, and the time of the last refusal, by model."""

    def settled(self, decision: Decision, end: Completion, at_s: float) -> None:
        """Count the end of a request; called for each refusal, and while any model is known."""
        attempt, model = decision.flight.attempt, decision.model
        says_so = attempt is not None and attempt.endpoint.refused_at > decision.now
        if end.status in FULL_STATUSES or (end.status == 503 and says_so):
            self.refused(model, at_s)
        elif model in self.known:
            bad, good, last_s = self._faded(model)
            self.known[model] = bad, good + 1.0, last_s

    def refused(self, model: str, at_s: float) -> None:
        """Count a refusal; times are in seconds since the epoch."""
        self.total += 1
        bad, good, _ = self._faded(model)
        self.known[model] = bad + 1.0, good, at_s

    def _faded(self, model: str) -> tuple[float, float, float]:
        bad, good, last_s = self.known.get(model, (0.0, 0.0, 0.0))
        keep = min(1.0, _WINDOW / (bad + good + 1.0))
        return bad * keep, good * keep, last_s

    def models(self, now_s: float) -> Iterator[str]:
        """Yield the models that are full now; forget those that refuse nobody any more."""
        for model, (bad, good, last_s) in list(self.known.items()):
            if now_s - last_s > _QUIET_S:
                del self.known[model]
            elif bad >= _LEAST and bad >= good:
                yield model
