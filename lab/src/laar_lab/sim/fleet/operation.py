"""Operate a fleet while it serves: endpoints crash, are replaced, join and leave.

* A crash loses an engine's requests and cache. The endpoint stays listed and refuses connections
  until its process is up again, with an empty cache.
* A deployment replaces the endpoints one by one. A new one with an empty cache joins; an old one
  leaves the list, finishes its requests within a grace period, and restarts as the next to join.
* Scaling adds endpoints with empty caches, or removes the last ones as above.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from laar.errors import SettingError
from laar_lab.sim.fleet.fleet import VirtualFleet


class Operation:
    """Operates a virtual fleet; schedule the operations before the run.

    Args:
        fleet: a fresh fleet.
        names: all possible endpoints; a deployment needs one more than are listed at any time.
        listed: number of endpoints listed at the beginning.
        rng: chooses the endpoints that crash.

    Attributes:
        drains: whether endpoints that leave are listed as draining for the grace period.

    Raises:
        SettingError: there are fewer names than endpoints to list.
    """

    def __init__(
        self, fleet: VirtualFleet, names: Sequence[str], listed: int, rng: random.Random
    ) -> None:
        if not 0 < listed <= len(names):
            raise SettingError(f"{listed} of {len(names)} endpoints can't be listed")
        self._fleet, self._rng = fleet, rng
        self._listed = list(names[:listed])
        self._spare = list(names[listed:])
        self.drains, self._draining = False, list[str]()
        fleet.discover(self._listed)

    def crash(self, at_s: float, down_s: float) -> None:
        """Schedule a crash of a random endpoint, and its restart after `down_s`."""
        self._fleet.clock.later(at_s, self._crash, down_s)

    def deploy(self, at_s: float, grace_s: float) -> None:
        """Schedule the replacement of every endpoint, one per `grace_s`."""
        self._fleet.clock.later(at_s, self._deploy, grace_s)

    def scale(self, at_s: float, listed: int, grace_s: float) -> None:
        """Schedule a change in the number of endpoints."""
        self._fleet.clock.later(at_s, self._scale, listed, grace_s)

    def _crash(self, down_s: float) -> None:
        host = self._fleet.host(self._rng.choice(self._listed))
        if not host.down:
            host.stop()
            self._fleet.clock.later(self._fleet.clock.now + down_s, host.start)

    def _deploy(self, grace_s: float) -> None:
        for number, old in enumerate(self._listed.copy()):
            at_s = self._fleet.clock.now + number * grace_s
            self._fleet.clock.later(at_s, self._replace, old, grace_s)

    def _replace(self, old: str, grace_s: float) -> None:
        if old in self._listed and self._spare:
            self._join()
            self._leave(old, grace_s)

    def _scale(self, listed: int, grace_s: float) -> None:
        while len(self._listed) < listed and self._spare:
            self._join()
        while len(self._listed) > listed:
            self._leave(self._listed[-1], grace_s)

    def _join(self) -> None:
        self._listed.append(self._spare.pop(0))
        self._fleet.discover(self._listed, self._draining)

    def _leave(self, name: str, grace_s: float) -> None:
        self._listed.remove(name)
        self._draining += [name] if self.drains else []
        self._fleet.discover(self._listed, self._draining)
        # Just before the next replacement, so that this endpoint can join for it.
        self._fleet.clock.later(self._fleet.clock.now + 0.99 * grace_s, self._restart, name)

    def _restart(self, name: str) -> None:
        self._draining = [other for other in self._draining if other != name]
        self._fleet.discover(self._listed, self._draining)
        host = self._fleet.host(name)
        host.stop()
        host.start()
        self._spare.append(name)
