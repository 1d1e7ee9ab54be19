"""The kinds of objects that laar reads, their API paths, and the permissions required."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of namespaced object: its API group (empty for core), version and plural name."""

    group: str
    version: str
    plural: str

    @property
    def name(self) -> str:
        """The name kubectl uses: plural, version and group."""
        return f"{self.plural}.{self.version}.{self.group}"

    def path(self, namespace: str) -> str:
        """Return the path at which to list and watch its objects."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/namespaces/{namespace}/{self.plural}"

    def remedy(self, namespace: str) -> str:
        """Return a sentence with the rule that a Role needs for this kind."""
        return (
            f"give laar's ServiceAccount a Role in namespace {namespace} with the rule"
            f' apiGroups: ["{self.group}"], resources: ["{self.plural}"], verbs: ["list", "watch"]'
        )


PODS = Resource(group="", version="v1", plural="pods")
POOLS = Resource(group="inference.networking.k8s.io", version="v1", plural="inferencepools")
LLM_D_GROUP = "llm-d.ai"
_SERVED = (
    (LLM_D_GROUP, "v1"),
    (LLM_D_GROUP, "v1alpha2"),
    ("inference.networking.x-k8s.io", "v1alpha2"),
)
OBJECTIVES, REWRITES = (
    tuple(Resource(group=group, version=version, plural=plural) for group, version in _SERVED)
    for plural in ("inferenceobjectives", "inferencemodelrewrites")
)
"""Groups and versions of these kinds, newest first. llm-d adopted them in release 0.9, and serves
an object in two versions while it migrates to v1."""

PERMISSIONS = (PODS, POOLS, *OBJECTIVES, *REWRITES)
"""Kinds that are listed and watched, each in one namespace; nothing is ever written. A selector
needs only the first."""
