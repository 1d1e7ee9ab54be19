"""Requests that other pickers have sent, and that this one has not heard of yet, as expected.

All pickers see the same endpoint as the cheapest, and until they hear of each other each would send
its next request there. So each endpoint is one picker's own, by rendezvous hashing. At the others'
own endpoints a picker expects one request, with the probability that any of them sends one within
the age of a record. So endpoints that are nearly as cheap are divided between the pickers; one that
is cheaper by more than a request is the choice of all, as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from laar.core.endpoints import EndpointTable, Floats
from laar.core.engines import Engines

RECORD_S = 0.05
"""Age by which nearly all readers have a record: batching, network and a busy reader included."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


class Unseen:
    """Keeps `EndpointTable.unseen`.

    Args:
        table: the endpoints.
        engines: the rate of requests.
        origin: this picker.
    """

    def __init__(self, table: EndpointTable, engines: Engines, origin: str) -> None:
        self._table = table
        self._engines = engines
        self._origin = origin
        self._known: tuple[int, Sequence[str]] = (-1, ())
        self._is_theirs: Floats = np.zeros(0)

    def expect(self, others: Sequence[str], now: float) -> None:
        """Expect requests from these other pickers, at the present rate."""
        table = self._table
        if not others:
            table.unseen = None
            return
        if self._known != (table.version, others):
            self._known = table.version, others
            self._is_theirs = self._owned_by(others)
        rate, _ = self._engines.traffic.arrivals(now)
        theirs = rate * len(others) / (len(others) + 1)
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
    """Return a picker's draw for each endpoint; the highest owns it."""
    mixed = (names ^ np.uint64(xxhash.xxh3_64_intdigest(origin.encode()))) * _MIX
    mixed ^= mixed >> np.uint64(32)
    return mixed * _MIX
