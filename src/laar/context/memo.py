"""What was decided for a block of a running conversation, so that its next turn repeats it.

Clients resend the whole history as they know it, so the key is a hash of the text as *received*.
Keying by what was sent, as the published program does, makes the next turn look new and loses
documents. Only orders are remembered, never text.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Memo", "Orders"]

Orders = tuple[tuple[int, ...], ...]
"""For each block of a text: received positions in sending order."""


class Memo:
    """A bounded map with a time to live, least recently used first out.

    Args:
        entries: most texts remembered.
        ttl_s: after the last use.
    """

    def __init__(self, entries: int, ttl_s: float) -> None:
        self._capacity = entries
        self._ttl_s = ttl_s
        self._entries: OrderedDict[int, tuple[float, Orders]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: int, now: float) -> Orders | None:
        """The orders of a text; a look-up keeps them alive."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._ttl_s:
            return None
        self.put(key, entry[1], now)
        return entry[1]

    def put(self, key: int, orders: Orders, now: float) -> None:
        """Remembers, and forgets what is past the capacity."""
        self._entries[key] = (now, orders)
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
