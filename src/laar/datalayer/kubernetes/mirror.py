"""Keep a local copy of some of the cluster's objects, by list and watch.

A list is read in pages small enough not to stall the event loop, and replaces the copy only once
complete, so deletions during an outage are noticed, and all other objects stay. A watch resumes
from the last version seen, bookmarks included. After a 410 (the server no longer has that version)
or any other error, the wait doubles each time; meanwhile the copy is kept, so endpoints survive an
outage of the API server.

Only the result of `keep` is stored, since objects consist mostly of managed fields.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from laar.datalayer.kubernetes.api import ApiError, ApiServer
from laar.datalayer.kubernetes.resources import Resource

Kept = TypeVar("Kept")

PAGE_OBJECTS = 50
"""Objects per page. A page of pods (0.4 MB) takes 4 ms to process, so it hardly delays requests."""
MAX_OBJECTS = 20_000
"""Maximum number of objects: four times the largest pool tested. A selector may match all."""
FIRST_WAIT_S = 0.1
LAST_WAIT_S = 30.0
STEADY_S = 5.0
"""Minimum duration of a healthy watch; a shorter one without events counts as a failure."""
MAX_SILENT = 3
"""Failures in a row that are not reported if a watch ended early, or if its version was gone. After
more, the objects are listed again each time, since a proxy may not let events pass."""
_MALFORMED = "answered with something that is not a list or an event"
ABSENT_WAIT_S = 60.0
"""Seconds between checks of whether an optional kind of object has been installed."""
ABSENT_LOOKS = 3
"""Number of consecutive failed checks after which known objects are dropped. If the cluster has
migrated to a different version of the objects, that version is found in the meantime."""


@dataclass(eq=False)
class Mirror(Generic[Kept]):
    """A local copy of the objects of one kind, by name.

    Args:
        select: the query's labelSelector or fieldSelector.
        keep: returns the part of an object to store, or None to ignore it.
        changed: called after `objects` changed, and after the first list even if empty.
        problem: called with each error, and with None once there is no error.
        optional: treat a kind that isn't installed as having no objects.

    Attributes:
        objects: the kept parts, by name.
        synced: whether the first list is complete.
        lost: names of objects that were known before the cluster dropped their kind.
    """

    api: ApiServer
    resource: Resource
    _: KW_ONLY
    select: Mapping[str, str]
    keep: Callable[[Any], Kept | None]
    changed: Callable[[], None]
    problem: Callable[[str | None], None]
    optional: bool = False

    def __post_init__(self) -> None:
        self.objects: dict[str, Kept] = {}
        self.synced = False
        self.lost: frozenset[str] = frozenset()
        self._path = self.resource.path(self.api.access.namespace)
        self._version = ""  # empty: list before watching
        self._failures = self._absent = 0
        self._is_cut = False  # watches open, but end at once

    async def run(self) -> None:
        """Mirror the objects until cancelled."""
        while True:
            wait_s = None
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                if self._failures >= MAX_SILENT:
                    self._is_cut = True
                    raise ApiError(410, f"{self._path}: each watch ends as soon as it opens")
            except ApiError as error:
                wait_s = self._failed(error)
            except (KeyError, TypeError, AttributeError):
                self._version = ""
                wait_s = self._failed(ApiError(0, f"{self._path} {_MALFORMED}"))
            if wait_s is None:
                wait_s = min(LAST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._failures, 16))
                self._failures += 1
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))

    def _failed(self, error: ApiError) -> float | None:
        """Report the error; return the longest wait in seconds, or None for the usual back-off."""
        if error.status in (404, 410):
            self._version = ""
        if error.status == 404 and self.optional:
            self._absent += 1
            if self.objects and self._absent < ABSENT_LOOKS:
                self.problem(f"{error}; the last list stays in use")
            else:
                self._replace({}, self.lost.union(self.objects))
                self.problem(None)
            return ABSENT_WAIT_S
        if error.status == 404:
            what = f"{self.resource.plural}.{self.resource.group}"
            self.problem(f"the cluster doesn't have {what}: install it, or use a pod selector")
        elif error.status == 403:
            self.problem(
                f"{error}; give laar's ServiceAccount a Role in namespace "
                f'{self.api.access.namespace} with the rule apiGroups: ["{self.resource.group}"], '
                f'resources: ["{self.resource.plural}"], verbs: ["list", "watch"]'
            )
        elif error.status != 410 or self._failures >= MAX_SILENT:
            self.problem(f"{error}; the last list stays in use")
        return None

    async def _list(self) -> None:
        objects: dict[str, Kept] = {}
        query = {**self.select, "limit": str(PAGE_OBJECTS)}
        while True:
            page = await self.api.list_page(self._path, query)
            for item in page["items"] or ():  # Go writes null for an empty list
                self._put(objects, item)
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                break
        self._version = page["metadata"]["resourceVersion"]
        self._absent = 0
        self._replace(objects, frozenset())

    def _replace(self, objects: dict[str, Kept], lost: frozenset[str]) -> None:
        if objects != self.objects or lost != self.lost or not self.synced:
            self.objects = objects
            self.lost = lost
            self.synced = True
            self.changed()

    async def _watch(self) -> None:
        query = {**self.select, "resourceVersion": self._version}
        opened_at = time.monotonic()
        try:
            async with self.api.watch(self._path, query) as events:
                if not self._is_cut:
                    self.problem(None)
                async for event in events:
                    self._version = self._take(event)
                    self._failures, self._is_cut = 0, False
                    self.problem(None)
        finally:  # proxies also cut healthy watches that have nothing to send
            if time.monotonic() - opened_at > STEADY_S:
                self._failures, self._is_cut = 0, False

    def _take(self, event: Any) -> str:
        """Apply one event; return the version to resume from."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            # A watch that can't continue is restarted with a list, whatever the reason.
            self._version = ""
            raise ApiError(int(item.get("code") or 0), str(item.get("message")))
        version: str = item["metadata"]["resourceVersion"]
        if kind == "DELETED":
            if self.objects.pop(item["metadata"]["name"], None) is not None:
                self.changed()
        elif kind != "BOOKMARK" and self._put(self.objects, item):
            self.changed()
        return version

    def _put(self, objects: dict[str, Kept], item: Any) -> bool:
        """Store the kept part of `item`; return whether `objects` changed."""
        name = item["metadata"]["name"]
        kept = self.keep(item)
        if kept is None:
            return objects.pop(name, None) is not None
        if objects.get(name) == kept or (name not in objects and len(objects) >= MAX_OBJECTS):
            return False
        # A relist reuses unchanged copies, so that comparison by identity is quick.
        known = self.objects.get(name)
        objects[name] = known if known == kept else kept
        return True
