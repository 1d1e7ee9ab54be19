"""Chains of hashes in few bytes: one hash names the part that all pickers have seen.

Hashes are chained: equal at one place means equal before it. So a chain that continues one sent
before is sent as an anchor (a place in that one and its hash) and the blocks behind it. A
conversation sends the new part of a turn, not the whole prompt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

MAX_ANCHORS = 131_072
"""Places that are known by their hash: some 20 MB with the blocks of chats, some 120 MB with those
of agents whose prompts have 400 KB. The least recently used one is forgotten. A sender names only
places in the younger half of its own."""

_EVERY = 16
"""Blocks between two anchors of a chain: a prompt that branches off sends 15 again at most."""


class Chains:
    """The chains that went by, sent or received, by their anchors."""

    def __init__(self) -> None:
        self._anchors: OrderedDict[int, tuple[array[int], int]] = OrderedDict()
        self._named: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._anchors)

    def pack(self, hashes: array[int]) -> tuple[int, int, array[int]]:
        """Return the number of blocks that the others know, the last one's hash, and the rest.

        (0, 0, all of it) where they know none. The chain counts as known from here on.
        """
        known = anchor = 0
        for place in range(len(hashes), 0, -1):
            if hashes[place - 1] in self._named:
                known, anchor = place, hashes[place - 1]
                break
        self.note(hashes, known)
        return known, anchor, hashes[known:]

    def unpack(self, known: int, anchor: int, tail: array[int]) -> array[int] | None:
        """Return the complete chain; None if its beginning is not known here."""
        if not known:
            self.note(tail)
            return tail
        found = self._anchors.get(anchor)
        if found is None or found[1] != known:
            return None
        hashes = found[0][:known]
        if tail:
            hashes = hashes + tail
        self.note(hashes, known)
        return hashes

    def note(self, hashes: array[int], known: int = 0) -> None:
        """Remember a chain that all pickers have; its first `known` blocks were noted before."""
        end = len(hashes)
        places = [*range(known - known % _EVERY + _EVERY, end, _EVERY), end]
        if known:
            places.insert(0, known)
        for place in places:
            if place:
                at = hashes[place - 1]
                self._anchors[at] = hashes, place
                self._anchors.move_to_end(at)
                self._named[at] = None
                self._named.move_to_end(at)
        while len(self._anchors) > MAX_ANCHORS:
            self._anchors.popitem(last=False)
        while len(self._named) > MAX_ANCHORS // 2:
            self._named.popitem(last=False)

    def forget_sent(self) -> None:
        """Send complete chains again: there is a picker that has not seen them."""
        self._named.clear()
