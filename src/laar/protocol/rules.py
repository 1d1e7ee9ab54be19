"""Priorities of objectives, and model rewrites, from all pools of a cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A rule: requests for `models` (empty: for any model) go to one of the weighted targets."""

    models: frozenset[str]
    targets: tuple[str, ...]
    weights: tuple[int, ...]


@dataclass(slots=True)
class _Rules:
    """The rules of one source."""

    pool: str
    priorities: Mapping[str, int] = field(default_factory=dict)
    rewrites: Sequence[Rewrite] = ()


class GatewayRules:
    """Objectives and rewrites by source; without a cluster there are none.

    A request that a gateway sends to a pool follows only that pool's rules. For requests without a
    pool, the first pool with an objective of the given name wins, and a rewrite for any model
    applies only if there is a single pool, since it would capture other pools' models.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.by_source: dict[str, _Rules] = {}

    def priority(self, objective: str, pool: str = "") -> int:
        """Return the priority of a pool's objective; 0 if it is unknown or empty."""
        for rules in self._in(pool):
            if objective in rules.priorities:
                return rules.priorities[objective]
        return 0

    def rewrite(self, model: str, pool: str = "") -> str | None:
        """Choose the name that `model` is rewritten to in a pool; None to leave it unchanged.

        A rule for the exact name takes precedence over a rule for any name; if there are several,
        the first applies. Targets without weights are equally likely.
        """
        sources = self._in(pool)
        rules = [rule for of in sources for rule in of.rewrites]
        rule = next((rule for rule in rules if model in rule.models), None)
        if rule is None and len(sources) == 1:
            rule = next((rule for rule in rules if not rule.models), None)
        if rule is None or not rule.targets:
            return None
        return self._rng.choices(rule.targets, rule.weights if any(rule.weights) else None)[0]

    def replace_priorities(self, source: str, pool: str, priorities: Mapping[str, int]) -> None:
        """Replace the objectives of a pool."""
        self.by_source.setdefault(source, _Rules(pool)).priorities = dict(priorities)

    def replace_rewrites(self, source: str, pool: str, rewrites: Sequence[Rewrite]) -> None:
        """Replace the rewrites of a pool, in order of precedence."""
        self.by_source.setdefault(source, _Rules(pool)).rewrites = tuple(rewrites)

    def _in(self, pool: str) -> list[_Rules]:
        return [rules for rules in self.by_source.values() if pool in ("", rules.pool)]
