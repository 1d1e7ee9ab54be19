"""Remember changes to texts of running conversations, so that later turns repeat them.

Clients resend the original history, so the key is a hash of the text as *received*. With a hash of
the text as sent, as in the published program, the next turn would look new and lose documents. Only
positions, orders and hashes are kept, never text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from laar.context.rewrite import Change


@dataclass(frozen=True, slots=True)
class Remembered:
    """The changes to a text; empty if it was sent unchanged.

    Args:
        changes: the changes to its blocks.
        docs: hashes of documents sent in full, which later turns may refer to.
    """

    changes: tuple[Change, ...] = ()
    docs: Sequence[int] = ()


MAX_ENTRIES = 20_000
"""Maximum messages of running conversations whose order is remembered; 0.7 KB each and 0.3 KB per
moved document."""

TTL_S = 3600.0
"""Seconds of silence after which a conversation's messages may be ordered again."""


class Memo:
    """A bounded LRU map with a time to live."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, tuple[float, Remembered]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: int, now: float) -> Remembered | None:
        """Return the changes to a text and refresh the entry; None if unknown."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > TTL_S:
            return None
        self.put(key, entry[1], now)
        return entry[1]

    def put(self, key: int, what: Remembered, now: float) -> None:
        """Store the changes to a text, and evict the oldest entry beyond the capacity."""
        self._entries[key] = (now, what)
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
