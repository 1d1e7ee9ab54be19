"""The kinds of objects that laar lists and watches, each in one namespace, and their API paths.

For a selector, only pods are read. Nothing is ever written.
"""

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
