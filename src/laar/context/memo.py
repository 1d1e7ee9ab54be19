"""Memory of the decision on a block of a running conversation, so that its next turn repeats it.

Clients resend the whole history as they know it, so the key is a hash of the text as *received*.
A key of the text as sent, as in the published program, makes the next turn look new and loses
documents. Only orders and hashes are remembered, never text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remembered:
    """The changes to a text, for each of its blocks; empty where it was left as received.

    Args:
        orders: received positions in sending order.
        repeated: received positions whose text gave way to a note.
        docs: hashes of the documents that went out in full, for later turns to point at.
    """

    orders: tuple[tuple[int, ...], ...] = ()
    repeated: tuple[frozenset[int], ...] = ()
    docs: Sequence[int] = ()


MAX_ENTRIES = 20_000
"""Messages of running conversations whose order is remembered, so that later turns repeat it;
0.7 KB each and 16 bytes for each document."""

TTL_S = 3600.0
"""Seconds of silence after which a conversation's messages may be ordered again."""


class Memo:
    """A bounded map with a time to live, least recently used first out.

    Args:
        entries: most texts remembered.
        ttl_s: after the last use.
    """

    def __init__(self, entries: int = MAX_ENTRIES, ttl_s: float = TTL_S) -> None:
        self._capacity = entries
        self._ttl_s = ttl_s
        self._entries: OrderedDict[int, tuple[float, Remembered]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: int, now: float) -> Remembered | None:
        """The changes to a text, or None if none are known; a look-up keeps the entry alive."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._ttl_s:
            return None
        self.put(key, entry[1], now)
        return entry[1]

    def put(self, key: int, what: Remembered, now: float) -> None:
        """Remembers a text's changes, and forgets the oldest entry beyond the capacity."""
        self._entries[key] = (now, what)
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
