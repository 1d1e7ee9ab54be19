"""The kinds of object that are read, where they are, and the permissions that this takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LLM_D_OBJECTIVES",
    "LLM_D_REWRITES",
    "OBJECTIVES",
    "PERMISSIONS",
    "PODS",
    "POOLS",
    "REWRITES",
    "Resource",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of namespaced object: its API group (empty for the core one), version and name."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str) -> str:
        """The path at which its objects are listed and watched."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/namespaces/{namespace}/{self.plural}"

    def remedy(self, namespace: str) -> str:
        """The rule that a Role needs for it, in words."""
        return (
            f"give laar's ServiceAccount a Role in namespace {namespace} with the rule"
            f' apiGroups: ["{self.group}"], resources: ["{self.plural}"], verbs: ["list", "watch"]'
        )


PODS = Resource(group="", version="v1", plural="pods")
POOLS = Resource(group="inference.networking.k8s.io", version="v1", plural="inferencepools")
OBJECTIVES = Resource(
    group="inference.networking.x-k8s.io", version="v1alpha2", plural="inferenceobjectives"
)
REWRITES = Resource(
    group="inference.networking.x-k8s.io", version="v1alpha2", plural="inferencemodelrewrites"
)
LLM_D_OBJECTIVES = Resource(group="llm-d.ai", version="v1alpha2", plural="inferenceobjectives")
LLM_D_REWRITES = Resource(group="llm-d.ai", version="v1alpha2", plural="inferencemodelrewrites")
"""The same kinds in the group that llm-d has kept them in since its release 0.9."""

PERMISSIONS = (PODS, POOLS, OBJECTIVES, REWRITES, LLM_D_OBJECTIVES, LLM_D_REWRITES)
"""Listed and watched, each in one namespace; nothing is ever written. The selector form needs the
first alone."""
