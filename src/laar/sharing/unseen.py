"""Estimate requests that other pickers have sent but this one does not know of yet.

The same endpoint is the cheapest for all pickers, so they would all send their next request there
until they learn of each other's. So rendezvous hashing assigns each endpoint to one picker. At the
endpoints of others, a picker expects one request, with the probability that any of them sends one
within `RECORD_S`. Endpoints of nearly equal cost are thus divided between the pickers; all still
choose an endpoint that is cheaper by more than a request costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

from laar.fleet.endpoints import Floats

if TYPE_CHECKING:
    from laar.sharing.sharing import Sharing

RECORD_S = 0.05
"""Seconds until nearly all pickers have a record: batching, network and processing included."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


class Unseen:
    """Maintains `EndpointTable.unseen`."""

    def __init__(self, sharing: Sharing) -> None:
        self._table = sharing.director.table
        self._engines = sharing.director.engines
        self._origin = sharing.origin
        self._known: tuple[int, Sequence[str]] = (-1, ())
        self._is_theirs: Floats = np.zeros(0)

    def expect(self, others: Sequence[str], now: float) -> None:
        """Expect requests from these other pickers at the current rate."""
        table = self._table
        if not others:
            table.unseen = None
            return
        if self._known != (table.version, others):
            self._known = table.version, others
            self._is_theirs = self._owned_by(others)
        theirs = self._engines.traffic.arrivals(now) * len(others) / (len(others) + 1)
        table.unseen = self._is_theirs * -math.expm1(-theirs * RECORD_S)

    def _owned_by(self, others: Sequence[str]) -> Floats:
        """Return 1 for the endpoints that another picker owns, by slot."""
        names = np.zeros(self._table.capacity, np.uint64)
        for slot in self._table.active.tolist():
            names[slot] = xxhash.xxh3_64_intdigest(self._table.spec(slot).key.encode())
        theirs = np.maximum.reduce([_draws(names, other) for other in others])
        owned: Floats = (theirs > _draws(names, self._origin)).astype(float)
        return owned


def _draws(names: npt.NDArray[np.uint64], origin: str) -> npt.NDArray[np.uint64]:
    """Return a picker's hash for each endpoint; the picker with the highest owns the endpoint."""
    mixed = (names ^ np.uint64(xxhash.xxh3_64_intdigest(origin.encode()))) * _MIX
    mixed ^= mixed >> np.uint64(32)
    return mixed * _MIX
