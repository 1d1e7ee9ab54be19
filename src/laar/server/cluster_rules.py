"""The rules that Kubernetes objects make, of all pools together, as the streams ask for them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from laar.datalayer.kubernetes import Rewrite, rewrite_target

__all__ = ["ClusterRules"]


class ClusterRules:
    """Objectives and rewrites by source; implements `laar.protocol.ports.GatewayRules`.

    Where two pools have an objective of one name, the pool that came first wins. A rewrite for any
    model counts only while its pool is the only one: it would take the other pools' models away.

    Args:
        rng: draws among weighted targets.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._priorities_of: dict[str, dict[str, int]] = {}
        self._rewrites_of: dict[str, tuple[Rewrite, ...]] = {}
        self._priorities: dict[str, int] = {}
        self._rewrites: tuple[Rewrite, ...] = ()

    def priority(self, objective: str) -> int:
        """The priority of an objective by name; 0 for an unknown one and for none."""
        return self._priorities.get(objective, 0)

    def rewrite(self, model: str) -> str | None:
        """The name to use for a model that a client asked for; None leaves it."""
        if not self._rewrites:
            return None
        return rewrite_target(self._rewrites, model, self._rng)

    def replace_priorities(self, source: str, priorities: Mapping[str, int]) -> None:
        """Takes all objectives of a pool."""
        self._priorities_of[source] = dict(priorities)
        self._priorities = {}
        for known in reversed(self._priorities_of.values()):
            self._priorities.update(known)

    def replace_rewrites(self, source: str, rewrites: Sequence[Rewrite]) -> None:
        """Takes all rewrites of a pool, in their order of precedence."""
        self._rewrites_of[source] = tuple(rewrites)
        alone = len(self._rewrites_of) == 1
        self._rewrites = tuple(
            rule for known in self._rewrites_of.values() for rule in known if rule.models or alone
        )
