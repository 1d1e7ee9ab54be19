"""Parts of the queue: an exact minimum over moving keys, and fair turns.

Relative slack falls at a different rate for each request, so no heap stays sorted. A `Bag` keeps
the lines (see `laar.flow.slack`) in two numpy rows and scans them all on each query: about 10 us
for 10,000, exact at any moment, with nothing to re-key as time passes.

A `Lane` holds the requests that compete for the same endpoints in one priority band. The next turn
goes to the tenant served the fewest tokens (start-time fair queueing: the smooth form of deficit
round robin, with no quantum to set, and no rounds to wait for if a prompt has a million tokens).
Tenancy is only as trustworthy as the header it comes from.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from laar.flow.slack import RHO_MAX, Line
from laar.latest import Latest

K = TypeVar("K", bound=Hashable)

MAX_IDLE_TENANTS = 1024
"""Maximum number, per lane, of idle tenants whose token debt is remembered; the oldest are dropped
first. A debt matters only until the other tenants have been served as much."""


class Bag(Generic[K]):
    """Keys with a `Line` each; `first` finds the lowest, breaking ties deterministically."""

    __slots__ = ("_found", "_keys", "_rows", "_scratch", "_slots")

    def __init__(self) -> None:
        self._keys: list[K] = []
        self._slots: dict[K, int] = {}
        self._found: tuple[float, K, float] | None = None  # last `now` for `first`, and its result
        self._rows: NDArray[np.float64] = np.empty((2, 4))  # rows offset_s and rate
        self._scratch: NDArray[np.float64] = np.empty(4)

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, key: K, line: Line) -> None:
        """Add a key, or replace the line of a known key."""
        self._found = None
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = len(self._keys)
            self._keys.append(key)
            if slot == len(self._scratch):
                self._rows = np.concatenate((self._rows, np.empty_like(self._rows)), axis=1)
                self._scratch = np.empty(2 * slot)
        self._rows[0, slot], self._rows[1, slot] = line

    def remove(self, key: K) -> None:
        """Remove a key; the last one moves into its slot."""
        self._found = None
        slot = self._slots.pop(key)
        last = self._keys.pop()
        if last != key:
            self._keys[slot] = last
            self._slots[last] = slot
            self._rows[:, slot] = self._rows[:, len(self._keys)]

    def first(self, now: float) -> tuple[K, float] | None:
        """Return the lowest key at `now` and its height.

        O(n), vectorized; cached for repeated calls with the same `now`, as in a full lane.
        """
        if self._found is not None and self._found[0] == now:
            return self._found[1:]
        size = len(self._keys)
        if not size:
            return None
        heights = np.subtract(self._rows[0, :size], now, out=self._scratch[:size])
        heights *= self._rows[1, :size]
        slot = int(heights.argmin())
        self._found = now, self._keys[slot], float(heights[slot])
        return self._found[1:]


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant in one lane: tokens served in this busy period, and requests by kind."""

    served_tokens: float
    last_turn: int = 0  # number of its last turn, ascending over all lanes
    bags: dict[bool, Bag[Hashable]] = field(default_factory=dict)  # by `is_long`, when needed


class Lane:
    """The requests of one band that compete for the same endpoints.

    Args:
        reach: the endpoints, one bit each; 0 if unknown.
        by_slack: whether heights are relative slack (order `lars` only). Then a long request with
            more than `RHO_MAX` lets shorts go first.
    """

    __slots__ = ("_by_slack", "_idle", "_rings", "_tenants", "_virtual_tokens", "reach")

    def __init__(self, *, reach: int = 0, by_slack: bool) -> None:
        self.reach = reach
        self._by_slack = by_slack
        self._tenants: dict[str, _Tenant] = {}
        self._idle: Latest[str, float] = Latest(MAX_IDLE_TENANTS)  # served tokens of debtors
        self._virtual_tokens = 0.0  # tokens of the tenant served last, before its turn
        # Tenants with short requests and with long ones, ordered by the tokens served to them.
        self._rings: dict[bool, Bag[str]] = {False: Bag(), True: Bag()}

    def __len__(self) -> int:
        return len(self._tenants)

    def add(self, key: Hashable, tenant: str, line: Line, *, is_long: bool) -> None:
        """Add a request to the lane."""
        entry = self._tenants.get(tenant)
        if entry is None:
            # A returning tenant keeps its debt, and absence earns no credit.
            served = max(self._virtual_tokens, self._idle.pop(tenant, 0.0))
            entry = self._tenants[tenant] = _Tenant(served)
        bag = entry.bags.get(is_long)
        if bag is None:
            bag = entry.bags[is_long] = Bag()
            self._rings[is_long].put(tenant, Line(entry.served_tokens, 1.0))
        bag.put(key, line)

    def remove(
        self,
        key: Hashable,
        tenant: str,
        *,
        is_long: bool,
        served_tokens: int = 0,
        turn: int = 0,
    ) -> None:
        """Remove a request; if it was served, charge its tenant `served_tokens` for the turn."""
        entry = self._tenants[tenant]
        entry.bags[is_long].remove(key)
        if not entry.bags[is_long]:
            del entry.bags[is_long]
            self._rings[is_long].remove(tenant)
        if served_tokens:
            self._virtual_tokens = max(self._virtual_tokens, entry.served_tokens)
            self._charge(tenant, served_tokens)
            entry.last_turn = turn
        if not entry.bags:
            del self._tenants[tenant]
            if entry.served_tokens > self._virtual_tokens:
                self._idle[tenant] = entry.served_tokens

    def charge(self, tenant: str, served_tokens: int) -> None:
        """Charge a tenant that is waiting here for tokens that it was served in another lane."""
        firsts = [found for ring in self._rings.values() if (found := ring.first(0.0))]
        least = min(served_tokens for _, served_tokens in firsts)
        self._virtual_tokens = max(self._virtual_tokens, least)
        self._charge(tenant, served_tokens)

    def _charge(self, tenant: str, served_tokens: int) -> None:
        entry = self._tenants[tenant]
        entry.served_tokens += served_tokens
        for kind in entry.bags:
            self._rings[kind].put(tenant, Line(entry.served_tokens, 1.0))

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._tenants

    def last_turn(self, tenant: str) -> int:
        """Return the number of a waiting tenant's last turn, 0 for none."""
        return self._tenants[tenant].last_turn

    def turn(self, now: float, *, long_may_go: bool) -> tuple[str, Hashable] | None:
        """Return the tenant and the request whose turn it is; None if nothing can be sent."""
        shorts = self._rings[False].first(0.0)
        longs = self._rings[True].first(0.0) if long_may_go else None
        if longs is None:
            return None if shorts is None else self._short(shorts[0], now)
        tenant = shorts[0] if shorts is not None and shorts[1] < longs[1] else longs[0]
        bags = self._tenants[tenant].bags
        short = self._first(tenant, now, is_long=False) if False in bags else None
        long = self._first(tenant, now, is_long=True) if True in bags else None
        if long is None or (short is not None and short[1] <= long[1]):
            assert short is not None
            return tenant, short[0]
        if self._by_slack and long[1] > RHO_MAX and shorts is not None:
            return self._short(shorts[0], now)
        return tenant, long[0]

    def _short(self, tenant: str, now: float) -> tuple[str, Hashable]:
        return tenant, self._first(tenant, now, is_long=False)[0]

    def _first(self, tenant: str, now: float, *, is_long: bool) -> tuple[Hashable, float]:
        found = self._tenants[tenant].bags[is_long].first(now)
        assert found is not None  # an empty bag is dropped immediately
        return found
