"""What the cluster's objects say of requests: priorities of objectives, other names for models."""

from __future__ import annotations

from typing import Protocol

__all__ = ["GatewayRules", "NoRules"]


class GatewayRules(Protocol):
    """Looked up for each request; both are a dictionary's work."""

    def priority(self, objective: str) -> int:
        """The priority of an objective by name; 0 for an unknown one and for none."""
        ...

    def rewrite(self, model: str) -> str | None:
        """The name to use for a model that a client asked for; None leaves it."""
        ...


class NoRules:
    """For a picker that no cluster told anything."""

    def priority(self, objective: str) -> int:
        """Every request is as important as any other."""
        return 0

    def rewrite(self, model: str) -> str | None:
        """Leaves every name."""
        return None
