"""Write Envoy's endpoints file, and track which endpoints Envoy knows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from laar.core.membership import EndpointSpec
from laar.envoy.endpoints_file import ENVOY_LEARNS_S, write_eds
from laar.telemetry.problems import Problems

WRITE_AGAIN_S = 1.0


class EnvoyFile:
    """Writes the endpoints file and remembers its content."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self._is_first = True
        self._problems = problems
        self._listed: Mapping[str, EndpointSpec] = {}
        self.known: frozenset[str] = frozenset()
        """Addresses that Envoy knows."""
        self.again_s: float | None = None
        """Seconds until the file must be rewritten, since endpoints were removed or writing failed
        (full disk, directory mounted late); None if it need not be."""

    async def write(self, wanted: Mapping[str, EndpointSpec]) -> bool:
        """Write the endpoints, by address; return whether Envoy knows them.

        Removed endpoints stay listed for at least `ENVOY_LEARNS_S`, since requests that were sent
        to them may not have arrived yet.
        """
        known = self.known
        listed = wanted if wanted.keys() == known else {**self._listed, **wanted}
        self.known &= wanted.keys()  # an endpoint that is removed and returns meanwhile is new
        # Writing thousands of endpoints takes tens of milliseconds.
        fault = await asyncio.to_thread(
            _write, self._path, list(listed.values()), known=bool(self._listed)
        )
        self._problems.report("eds", fault)
        left_s = ENVOY_LEARNS_S if len(listed) > len(wanted) else None
        self.again_s = left_s if fault is None else WRITE_AGAIN_S
        if fault is not None:
            self.known = known
            return False
        if not self._is_first and not known.issuperset(wanted):
            # Requests may be waiting for a new endpoint, even if the fleet was empty.
            await asyncio.sleep(ENVOY_LEARNS_S)
            listed = wanted  # the next write drops what was removed before this one
        self._is_first, self._listed, self.known = False, listed, frozenset(wanted)
        return True


def _write(path: Path, specs: Sequence[EndpointSpec], *, known: bool) -> str | None:
    """Write the file; return a message on failure.

    A starting picker has no endpoints until its cluster's first list or the first DNS answer. Until
    then Envoy uses the previous picker's file, which is kept unless Envoy is `known` to have
    endpoints from this picker.
    """
    try:
        if not specs and not known and path.exists():
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_eds(path, specs)
    except OSError as error:
        return (
            f"envoy.eds_file {path} cannot be written ({error.strerror}); Envoy keeps the endpoints"
            f" it has. Run mkdir -p {path.parent}, and check its free space and permissions"
        )
    return None
