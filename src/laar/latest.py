"""Dictionaries of limited size, for what is remembered about clients and endpoints."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(OrderedDict[K, V]):
    """A dictionary that keeps the last `most` entries that were set, in that order."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            del self[self.next_out]

    @property
    def next_out(self) -> K:
        """The key that is dropped first; there has to be one."""
        return next(iter(self))


class Shared(Latest[K, V]):
    """One whose owners, such as tenants, have equal shares.

    Of the owner that has the most entries, the oldest is dropped: whatever others set, an owner
    keeps at least its share of `most` entries.

    Args:
        owner: returns the owner of a key and its value.
    """

    __slots__ = ("_counts", "_keys", "_owner")

    def __init__(self, most: int, owner: Callable[[K, V], Hashable]) -> None:
        super().__init__(most)
        self._owner = owner
        self._keys: dict[Hashable, OrderedDict[K, None]] = {}
        """Each owner's keys, the oldest first."""
        self._counts: defaultdict[int, dict[Hashable, None]] = defaultdict(dict)
        """The owners with so many keys."""

    def __setitem__(self, key: K, value: V) -> None:
        owner = self._owner(key, value)
        if key in self and self._owner(key, self[key]) != owner:
            del self[key]
        OrderedDict.__setitem__(self, key, value)
        OrderedDict.move_to_end(self, key)
        keys = self._keys.get(owner)
        if keys is None:
            keys = self._keys[owner] = OrderedDict()
        if key in keys:
            keys.move_to_end(key)
            return
        keys[key] = None
        self._count(owner, len(keys) - 1, len(keys))
        if len(self) > self._most:
            del self[self.next_out]

    def __delitem__(self, key: K) -> None:
        owner = self._owner(key, self[key])
        keys = self._keys[owner]
        del keys[key]
        self._count(owner, len(keys) + 1, len(keys))
        super().__delitem__(key)

    def move_to_end(self, key: K, last: bool = True) -> None:
        """Make an entry the latest, or the oldest."""
        super().move_to_end(key, last)
        self._keys[self._owner(key, self[key])].move_to_end(key, last)

    def pop(self, key: K, default: Any = None) -> Any:
        """Remove an entry and return its value; the default if there is none."""
        if key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._keys.clear()
        self._counts.clear()

    @property
    def next_out(self) -> K:
        """The key that is dropped first; there has to be one."""
        most = max(self._counts)
        return next(iter(self._keys[next(iter(self._counts[most]))]))

    def _count(self, owner: Hashable, before: int, now: int) -> None:
        if before:
            owners = self._counts[before]
            del owners[owner]
            if not owners:
                del self._counts[before]
        if now:
            self._counts[now][owner] = None
        else:
            del self._keys[owner]
