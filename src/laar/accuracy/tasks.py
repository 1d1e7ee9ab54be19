"""Limit the tasks that clients may name.

A client may name any task (`x-laar-task`), and each new task creates cells, whose number
is limited. So the number of tasks that each tenant may name in addition to the operator's and the
artifact's is limited too; further names are ignored.
"""

from __future__ import annotations

from laar.latest import Latest

MAX_TASKS = 32
"""Maximum number of tasks that a tenant may name besides known ones: more than a product has."""

MAX_TENANTS = 1000
"""Maximum number of tenants with remembered tasks (4 MB); the least recently seen is dropped."""

IDLE_S = 86_400.0
"""Seconds without use after which a name may be replaced: a day."""


class TaskNames:
    """Tracks the task names of each tenant."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        """Names that are always accepted."""
        self._named: Latest[str, dict[str, float]] = Latest(MAX_TENANTS)
        self.ignored = 0
        """Requests whose task exceeded their tenant's limit."""

    def taken(self, tenant: str, task: str, now: float) -> bool:
        """Return whether a request's task is accepted, remembering its name.

        Args:
            tenant: the tenant that names it; empty if tenants are not distinguished.
            task: a well-formed name.
            now: seconds, monotonic.
        """
        if task in self.known:
            return True
        named = self._named[tenant] = self._named.get(tenant, {})
        if task not in named and len(named) >= MAX_TASKS:
            oldest = min(named, key=named.__getitem__)
            if now - named[oldest] < IDLE_S:
                self.ignored += 1
                return False
            del named[oldest]
        named[task] = now
        return True
