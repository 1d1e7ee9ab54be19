"""Compact encoding of hash chains: one hash replaces the part that all pickers have seen.

Hashes are chained, so if two chains agree at one block they agree on all before it. A chain that
continues one already sent is sent as an anchor (a position in that chain and its hash) plus the
blocks after it. So for a turn of a conversation only the new part is sent.
"""

from __future__ import annotations

from array import array

from laar.latest import Latest

MAX_ANCHORS = 131_072
"""Maximum number of positions remembered, by hash: about 20 MB for chats, 120 MB for agents with
400 KB prompts. The least recently used is evicted. A sender only refers to the newer half of the
positions that it remembers."""

_EVERY = 16
"""Blocks between two anchors of a chain; for a prompt that branches off, at most 15 are resent."""


class Chains:
    """The chains sent or received so far, by their anchors."""

    def __init__(self) -> None:
        self._anchors: Latest[int, tuple[array[int], int]] = Latest(MAX_ANCHORS)
        self._named: Latest[int, None] = Latest(MAX_ANCHORS // 2)

    def pack(self, hashes: array[int]) -> tuple[int, int, array[int]]:
        """Return the number of blocks the others know, the hash of the last, and the new blocks.

        If they know none, return (0, 0, hashes). From then on, the chain counts as known.
        """
        places = range(len(hashes), 0, -1)
        known = next((place for place in places if hashes[place - 1] in self._named), 0)
        self.note(hashes, known)
        return known, hashes[known - 1] if known else 0, hashes[known:]

    def unpack(self, known: int, anchor: int, tail: array[int]) -> array[int] | None:
        """Return the complete chain, or None if its beginning is unknown here."""
        if not known:
            self.note(tail)
            return tail
        found = self._anchors.get(anchor)
        if found is None or found[1] != known:
            return None
        hashes = found[0][:known] + tail
        self.note(hashes, known)
        return hashes

    def note(self, hashes: array[int], known: int = 0) -> None:
        """Remember a chain that all pickers have; its first `known` blocks were noted before."""
        end = len(hashes)
        places = (known, *range(known - known % _EVERY + _EVERY, end, _EVERY), end)
        for place in filter(None, places):
            at = hashes[place - 1]
            self._anchors[at] = hashes, place
            self._named[at] = None

    def forget_sent(self) -> None:
        """Send complete chains again: some picker has not seen them."""
        self._named.clear()
