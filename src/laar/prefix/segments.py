"""The slots that hold each block, stored as runs of blocks with the same holders.

A run is found by the hash of its first block. Hashes are chained, so that hash alone identifies the
place in the tree, and no child pointers are needed. A run has a bit for each slot: one walk over
the prompt matches every slot, and takes one step per run on the path.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import ENDS

_FEW_HOLDERS = 32
"""Maximum number of holders to process one by one, which is then faster than by whole columns."""


@dataclass(slots=True, eq=False)
class _Segment:
    """Blocks that the same endpoints hold."""

    hashes: array[int]
    holders: int


class Segments:
    """All runs of blocks. Sets of slots are integers with a bit for each slot.

    Attributes:
        by_first: the runs, by the hash of their first block.
        blocks: the sum of their lengths.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.by_first: dict[int, _Segment] = {}

    def walk(self, hashes: array[int]) -> tuple[list[int], list[int]]:
        """Return the sets of slots along the prompt, as bits, and the depth to which each holds it.

        A slot that holds a block holds all before it, so each set is a subset of the previous one.
        Takes one dictionary look-up and one bisection per segment on the path.
        """
        depth, end = 0, len(hashes)
        sets: list[int] = []
        depths: list[int] = []
        while depth < end and (segment := self.by_first.get(hashes[depth])) is not None:
            if not sets or segment.holders != sets[-1]:
                sets.append(segment.holders)
                depths.append(depth)
            depth += shared_from(segment.hashes, hashes, depth)
            depths[-1] = depth
        return sets, depths

    def tag(self, bit: int, hashes: array[int], held: int, edge: int) -> None:
        """Set the slot's bit on the path beyond ``held`` blocks, creating missing segments.

        ``edge`` is the last depth up to ``held`` at which a segment is known to end.
        """
        depth, end = edge, len(hashes)
        while depth < end:
            segment = self.by_first.get(hashes[depth])
            if segment is None:
                self.by_first[hashes[depth]] = _Segment(hashes[depth:], bit)
                self.blocks += end - depth
                return
            shared = shared_from(segment.hashes, hashes, depth)
            if shared < len(segment.hashes):
                self._split(segment, shared)
            depth += shared
            if depth > held:
                segment.holders |= bit

    def untag(self, bit: int, hashes: array[int], keep: int) -> None:
        """Clear a slot's bit on the blocks of one of its uses, except the first ``keep``.

        A use begins and ends where segments do: they are split when it is made and never merged.
        """
        place, end = 0, len(hashes)
        while place < end:
            segment = self.by_first[hashes[place]]
            if place < keep < place + len(segment.hashes):
                self._split(segment, keep - place)
            size = len(segment.hashes)
            if place >= keep:
                segment.holders ^= bit
                if not segment.holders:
                    del self.by_first[hashes[place]]
                    self.blocks -= size
            place += size

    def _split(self, segment: _Segment, at: int) -> None:
        """Split a segment in two with the same holders."""
        lower = _Segment(segment.hashes[at:], segment.holders)
        segment.hashes = segment.hashes[:at]
        self.by_first[lower.hashes[0]] = lower


def give(found: npt.NDArray[Any], sets: Sequence[int], depths: Sequence[int], total: float) -> None:
    """Give each slot the share of a prompt of `total` bytes at the deepest set that contains it."""
    if not sets:
        return
    if sets[0].bit_count() <= _FEW_HOLDERS:
        deeper = 0
        for at in range(len(sets) - 1, -1, -1):
            here, value = sets[at] & ~deeper, min(ENDS[depths[at]], total) / total
            deeper = sets[at]
            while here:
                lowest = here & -here
                found[lowest.bit_length() - 1] = value
                here ^= lowest
        return
    width = (len(found) + 7) >> 3
    rows = np.frombuffer(b"".join([row.to_bytes(width, "little") for row in sets]), np.uint8)
    bits = np.unpackbits(rows.reshape(-1, width), axis=1, count=len(found), bitorder="little")
    values = [min(ENDS[depth], total) / total for depth in depths]
    np.take((0, *values), np.add.reduce(bits, axis=0, dtype=np.uint16), out=found)


def shared_blocks(one: array[int], other: array[int]) -> int:
    """Return the number of leading blocks that two chains share."""
    return shared_from(one, other, 0) if one and other and one[0] == other[0] else 0


def shared_from(part: array[int], hashes: array[int], depth: int) -> int:
    """Return the number of blocks that ``part`` and ``hashes[depth:]`` share, at least 1.

    If chained hashes are equal at one depth, they are equal at all earlier ones, so bisect.
    """
    most = min(len(part), len(hashes) - depth)
    if part[most - 1] == hashes[depth + most - 1]:
        return most
    least = 1
    while most - least > 1:
        middle = (least + most) >> 1
        if part[middle - 1] == hashes[depth + middle - 1]:
            least = middle
        else:
            most = middle
    return least
