"""The changes made to the texts of running conversations, so that later turns repeat them.

Clients resend the history as they wrote it, so the key is a hash of the text as *received*. With a
key of the text as sent, as in the published program, the next turn looks new and loses documents.
Only places, orders and hashes are kept, never text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from laar.context.rewrite import Change


@dataclass(frozen=True, slots=True)
class Remembered:
    """The changes to a text; none where it was sent as received.

    Args:
        changes: the changes to its blocks.
        docs: hashes of the documents that went out in full, for later turns to point at.
    """

    changes: tuple[Change, ...] = ()
    docs: Sequence[int] = ()


MAX_ENTRIES = 20_000
"""Messages of running conversations whose order is remembered, so that later turns repeat it;
0.7 KB each and 0.3 KB for each document that was moved."""

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
        """Return the changes to a text, None if unknown; a look-up keeps the entry alive."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._ttl_s:
            return None
        self.put(key, entry[1], now)
        return entry[1]

    def put(self, key: int, what: Remembered, now: float) -> None:
        """Keep the changes to a text, and drop the oldest entry beyond the capacity."""
        self._entries[key] = (now, what)
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
