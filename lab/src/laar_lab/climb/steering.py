"""A climb that steers a director: each decision has weights of its own, and its outcome counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.core.policy import Policy
from laar.core.request import Request
from laar_lab.climb.windows import Observed, Weights

PoliciesOf = Callable[[Mapping[str, float]], Mapping[str, Policy]]
"""Returns the policies with these weights in the one that is tuned."""


class Climb(Protocol):
    """Proposes weights while requests flow: the tuner, and the published climb."""

    def weights(self, now: float) -> Weights:
        """Return the weights for one decision; called once for each."""
        ...

    def observe(self, sample: Observed, now: float) -> None:
        """Handle the outcome of a decision."""
        ...


def steer(director: Director, climb: Climb, policies_of: PoliciesOf) -> None:
    """Let a climb set the weights of each decision from now on, and observe its outcome."""
    decide, settle = director.decide, director.settle
    versions: dict[str, int] = {}
    live: dict[str, float] = {}

    def decided(request: Request, now: float, *more: Any) -> Decision:
        weights = climb.weights(now)
        if weights.values != live:
            live.clear()
            live.update(weights.values)
            director.use(director.settings, policies_of(live))
        decision = decide(request, now, *more)
        versions[decision.id] = weights.version
        return decision

    def settled(decision: Decision, end: Completion) -> None:
        settle(decision, end)
        if version := versions.pop(decision.id, 0):
            sample = Observed(
                version=version,
                ttft_s=end.latency_s if end.ttft_s is None else end.ttft_s,
                e2e_s=end.latency_s,
                ok=end.ok and end.cause == "complete",
            )
            climb.observe(sample, decision.now + end.latency_s)

    director.decide, director.settle = decided, settled  # type: ignore[assignment, method-assign]
