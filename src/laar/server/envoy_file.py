"""Envoy's endpoints file as the picker keeps it, and which endpoints Envoy knows by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from laar.core.membership import EndpointSpec
from laar.datalayer import split_address
from laar.envoy.endpoints_file import ENVOY_LEARNS_S, EndpointAddress, write_eds
from laar.telemetry.problems import Problems

WRITE_AGAIN_S = 1.0


class EnvoyFile:
    """Writes the file, and remembers its content.

    Args:
        path: the file.
        problems: gets the fault of a file that cannot be written.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self._is_first = True
        self._problems = problems
        self._listed: Mapping[str, EndpointSpec] = {}
        self.known: frozenset[str] = frozenset()
        """Addresses that Envoy knows."""
        self.again_s: float | None = None
        """Seconds until it has to be written again: endpoints left, or it could not be written (a
        full disk, a directory that is mounted late)."""

    async def write(self, wanted: Mapping[str, EndpointSpec]) -> bool:
        """Write the endpoints, by address, and return whether Envoy knows them.

        Those that left are listed until the next write without a change, which `again_s` asks for:
        requests that were sent there are on their way.
        """
        known = self.known
        listed = wanted if wanted.keys() == known else {**self._listed, **wanted}
        self.known &= wanted.keys()  # one that leaves and is back meanwhile is a newcomer
        # Thousands of endpoints are tens of milliseconds of writing.
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
            # Requests may wait for a newcomer, also where the fleet was empty.
            await asyncio.sleep(ENVOY_LEARNS_S)
        self._is_first, self._listed, self.known = False, listed, frozenset(wanted)
        return True


def _write(path: Path, specs: Sequence[EndpointSpec], *, known: bool) -> str | None:
    """Write the file; return the text of the problem, if any.

    A picker that starts has no endpoint until the first list of its cluster, or the first answer of
    its DNS. Envoy goes on without it by the file of the picker before: that one stays until then,
    while Envoy is not `known` to have endpoints of this picker.
    """
    addresses = []
    for spec in specs:
        host, port = split_address(spec.address)
        way, facts = spec.way, {"model": spec.models[0]}
        addresses.append(
            EndpointAddress(host=host, port=port, metadata=facts, name=way.name, ca=way.ca)
        )
    try:
        if not addresses and not known and path.exists():
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_eds(path, addresses)
    except OSError as error:
        return (
            f"envoy.eds_file {path} cannot be written ({error.strerror}); Envoy keeps the endpoints"
            f" it has. Remedy: mkdir -p {path.parent}, writable by this user"
        )
    return None
