"""The tasks named by clients that count.

A client may name any task (`x-laar-task`), and each new one makes cells of outcomes, which are few.
So besides the operator's and the artifact's tasks a tenant may name a limited number. The rest
counts as if it were not named.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_TASKS = 32
"""Tasks that one tenant may name besides those that are known: more than a product has."""

MAX_TENANTS = 1000
"""Tenants whose tasks are kept, some 4 MB; beyond it the one that named none for longest goes."""

IDLE_S = 86_400.0
"""A name that was not used for a day makes room for another."""


class TaskNames:
    """Counts tasks by tenant.

    Args:
        known: always taken.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = frozenset(known)
        self._named: dict[str, dict[str, float]] = {}
        self.ignored = 0
        """Requests whose task exceeded their tenant's limit."""

    def taken(self, tenant: str, task: str, now: float) -> bool:
        """Return whether a task counts.

        Args:
            tenant: the tenant that names it; empty where tenants are not distinguished.
            task: a well-formed name.
            now: seconds, monotonic.
        """
        if task in self.known:
            return True
        named = self._named.pop(tenant, None)
        if named is None:
            named = {}
            if len(self._named) >= MAX_TENANTS:
                del self._named[next(iter(self._named))]
        self._named[tenant] = named
        if task not in named and len(named) >= MAX_TASKS:
            oldest = min(named, key=named.__getitem__)
            if now - named[oldest] < IDLE_S:
                self.ignored += 1
                return False
            del named[oldest]
        named[task] = now
        return True
