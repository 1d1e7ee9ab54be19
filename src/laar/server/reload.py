"""Reload the settings files of a running picker when they change.

The settings file, the artifact and the key files it names are polled, and checked at once on
SIGHUP; a thread reads them together. Files with which a picker would not start are not applied: an
error leaves everything unchanged and is reported with file, line and key. From usable files, all
settings that may change at runtime are applied together, in one call between two stream messages.
Other changes are listed as pending until a restart, or until the file has the old values again.

A change is applied once two consecutive polls see the same files, so that none is half-written, or
every five seconds while they keep changing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from laar.accuracy.capability import CapabilityModel
from laar.core.policy import Policy
from laar.datalayer.endpoints_file import AGAIN_S
from laar.datalayer.files import Settling, Stamp, is_overwritten, stamp_of
from laar.datalayer.visits import occurs, until_look_s
from laar.errors import SettingError, some
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.policies import build_policies
from laar.server.learning import artifact_of
from laar.settings import Loaded, Settings, load
from laar.settings.changes import Change, change
from laar.telemetry.problems import PASSWORD, Problems

_LOG = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between polls; as with the endpoints file, a change takes effect within two polls."""

Parts = tuple[Sequence[EndpointSpec], CapabilityModel, Mapping[str, Policy] | None]
"""The endpoints and the artifact of new settings, and the policies, or None if unchanged."""

Apply = Callable[[Settings, Parts], None]
"""Apply settings and parts. Synchronous: no request sees a partial change."""


class SettingsReloader:
    """The settings in effect, their origins, and changes waiting for a restart.

    Args:
        loaded: the initial settings; without a file, nothing is watched.
        problems: receives problems with files, and the changes waiting for a restart.

    Attributes:
        poll_s: seconds between polls; may be changed.
        pending: paths of settings whose change waits for a restart.
        is_refused: whether the current files can't be used.
        applied: number of reloads that changed settings.
    """

    def __init__(self, loaded: Loaded, *, problems: Problems) -> None:
        self.settings = loaded.settings
        self._path = loaded.path
        self._stamps = loaded.stamps
        self._origins = loaded.origins
        self._wanted = loaded
        self.pending: tuple[str, ...] = ()
        self._problems = problems
        self.poll_s = POLL_S
        self._asked = asyncio.Event()
        self.is_refused = False
        self._unread = False
        self.applied = 0

    # -- following -----------------------------------------------------------------------------

    def look(self) -> None:
        """Schedule rereading the files, even if unchanged."""
        self._asked.set()

    async def follow(self, apply: Apply) -> None:
        """Watch the files and apply changes until cancelled."""
        if self._path is None:
            return
        loop = asyncio.get_running_loop()
        settling, tried_at = Settling(self._stamps), loop.time()
        while True:
            await occurs(self._asked, until_look_s(self.poll_s))
            found = await asyncio.to_thread(_stamps, self._stamps)
            changed = settling.is_due(found, self._stamps, loop.time())
            again = self._unread and loop.time() - tried_at >= AGAIN_S
            if changed or again or self._asked.is_set():
                self._asked.clear()
                self._stamps, tried_at = found, loop.time()
                await self._reload(self._path, apply)

    async def _reload(self, path: Path, apply: Apply) -> None:
        self._unread = True  # so that the files are also retried after an internal error
        try:
            loaded, found, parts = await asyncio.to_thread(self._read, path)
        except (SettingError, OSError) as error:  # such as a directory that can't be entered
            self.is_refused = True
            self._problems.report(Fault.SETTINGS, f"all settings stay as they were: {error}")
            return
        self.is_refused = False
        self._problems.report(Fault.SETTINGS, None)
        before, files = self._wanted.stamps, loaded.stamps.items()
        contents = [str(f) for f, stamp in files if f != path and before.get(f, stamp) != stamp]
        if applied := [*found.applied, *contents]:
            apply(found.settings, parts)
            self.applied += 1
            _LOG.info("now in effect: %s", ", ".join(applied))
        kept = {path: self._origins[path] for path in found.pending}
        self.settings = found.settings
        self._origins = {**loaded.origins, **kept}
        self._wanted, self.pending, self._stamps = loaded, found.pending, loaded.stamps
        self._problems.report(Fault.RESTART, self._waiting(found) if found.pending else None)
        self._unread = False

    def _read(self, path: Path) -> tuple[Loaded, Change, Parts]:
        """Reread all files; run in a thread.

        Raise `SettingError` if a file can't be used, and `OSError` if a path can't be accessed.
        """
        if path.exists() and not path.is_file():  # reading a pipe might never end
            raise SettingError(f"{path}: not a regular file")
        loaded = load(path)
        for file, stamp in loaded.stamps.items():
            if is_overwritten(stamp, stamp_of(file)):
                raise SettingError(f"{file} was written to while it was read")
        found = change(self.settings, loaded.settings)
        settings, routing, policies = found.settings, found.settings.routing, None
        with loaded.located():  # policies too, since a plug-in may fail or be slow
            if routing != self.settings.routing:
                policies = build_policies(routing.weights, routing.given, routing.policies)
            return loaded, found, (settings.listed(), artifact_of(settings.accuracy), policies)

    def _waiting(self, found: Change) -> str:
        origins = self._wanted.origins
        named = some([f"{path} ({origins[path]})" for path in found.pending])
        text = f"needed to apply {named}; the old value is in effect"
        if found.obstacle:
            text += f". They can only be applied together ({found.obstacle})"
        return text

    # -- showing -------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        """Return the settings in effect, their origins, and changes waiting for a restart."""
        running = _public(self.settings.model_dump(mode="json"))
        wanted = _public(self._wanted.settings.model_dump(mode="json")) if self.pending else {}
        pending = {
            path: {
                "in_effect": _at(running, path),
                "in_file": _at(wanted, path),
                "origin": self._wanted.origins[path],
            }
            for path in self.pending
        }
        return {**running, "origins": self._origins, "pending_restart": pending}


def _stamps(files: Mapping[Path, Stamp]) -> dict[Path, Stamp]:
    return {path: stamp_of(path) for path in files}


def _at(values: Any, path: str) -> Any:
    return reduce(getitem, path.split("."), values)


def _public(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the passwords in URLs."""
    for source in (*values["endpoints"], *values["kubernetes"]):
        for name in source.keys() & {"metrics_url", "api_server"}:
            source[name] = source[name] and PASSWORD.sub("", source[name])
    return values
