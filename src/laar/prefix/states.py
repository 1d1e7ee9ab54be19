"""Where engines whose models have a recurrent state can resume a prompt.

Such an engine (Qwen3-Next, Kimi Linear, Nemotron-H and others in vLLM) needs the state after a
prefix, besides the prefix's blocks. It keeps states only on a grid: near the end of each prompt,
and where a prompt left one that was cached before. So the second prompt about a document finds
nothing, and the third finds most of it.

This is for engines without KV events, which tell where states are (`laar.prefix.tokens`). Whether a
state was evicted is unknown; the blocks before it bound what is believed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laar.latest import Latest
from laar.prefix.blocks import ENDS, Chain, blocks_in
from laar.prefix.match import Grid

MAX_STATES = 65_536
"""Maximum number of places remembered where some engine has a state, about 8 MB. One that publishes
events may have as many."""


class States:
    """The places in prompts where each slot's engine has probably kept a state.

    Attributes:
        grids: the grid of each slot whose engine keeps states.
    """

    def __init__(self) -> None:
        self.grids: dict[int, Grid] = {}
        self._at: Latest[int, int] = Latest(MAX_STATES)  # slots, a bit each, by the prefix's hash

    def sent(self, slot: int, chain: Chain, bytes_each: float, shared: int) -> int:
        """Record where a slot will keep states of a prompt; return the last place's hash, or 0.

        Args:
            slot: the slot; nothing happens unless its engine keeps states.
            chain: the prompt.
            bytes_each: bytes per token.
            shared: number of its blocks that are cached there, or will be before it is computed.
        """
        if (grid := self.grids.get(slot)) is None:
            return 0
        left = chain.bytes_of(shared) / bytes_each
        self._note(slot, chain, left // grid.block_tokens * grid.block_tokens * bytes_each)
        return self.ended(slot, chain, chain.total_bytes / bytes_each, 0)

    def ended(self, slot: int, chain: Chain, tokens: float, expected: int) -> int:
        """Record the last state of a prompt of so many tokens, instead of the `expected` one."""
        unit = self.grids[slot].unit_tokens
        last = max(0.0, tokens - 1.0) // unit * unit  # an engine always computes the last token
        hash_ = self._note(slot, chain, last * chain.total_bytes / max(tokens, 1.0))
        if expected not in (0, hash_):
            self._at[expected] = self._at.get(expected, 0) & ~(1 << slot)
        return hash_

    def _note(self, slot: int, chain: Chain, place_bytes: float) -> int:
        blocks = min(blocks_in(int(place_bytes)), len(chain))
        if not blocks:
            return 0
        hash_ = chain.hashes[blocks - 1]
        self._at[hash_] = self._at.get(hash_, 0) | 1 << slot
        return hash_

    def left(self, chain: Chain, held: npt.NDArray[np.float64], bytes_each: float) -> None:
        """Reduce the shares of a prompt that slots hold to where it would leave a state."""
        for slot, grid in self.grids.items():
            if slot < len(held):
                step = grid.block_tokens * bytes_each / max(chain.total_bytes, 1)
                held[slot] = held[slot] // step * step

    def limit(self, chain: Chain, shares: npt.NDArray[np.float64], bytes_each: float) -> None:
        """Reduce each slot's share of a prompt to the part that its engine can resume.

        Args:
            chain: the prompt.
            shares: shares by slot, in 0..1; written to.
            bytes_each: bytes per token.
        """
        known = [
            (ENDS[depth], slots)
            for depth, hash_ in enumerate(chain.hashes, 1)
            if (slots := self._at.get(hash_, 0))
        ]
        for slot, grid in self.grids.items():
            if slot >= len(shares):
                continue
            held_bytes = shares[slot] * chain.total_bytes
            if grid.everywhere:
                step_bytes = grid.block_tokens * bytes_each
                found = held_bytes // step_bytes * step_bytes
            else:
                bit = 1 << slot
                ends = (end for end, slots in reversed(known) if slots & bit and end <= held_bytes)
                found = next(ends, 0)
            shares[slot] = found / max(chain.total_bytes, 1)

    def use(self, slot: int, grid: Grid | None) -> None:
        """Set the grid of a slot's engine; None if it keeps no states."""
        if grid is None:
            self.clear(slot)
            self.grids.pop(slot, None)
        else:
            self.grids[slot] = grid

    def clear(self, slot: int) -> None:
        """Forget the states of an engine that restarted."""
        if slot in self.grids:
            for hash_, slots in list(self._at.items()):
                if slots >> slot & 1:
                    dict.__setitem__(self._at, hash_, slots ^ 1 << slot)
