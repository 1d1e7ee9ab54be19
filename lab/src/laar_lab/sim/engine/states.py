"""The recurrent states that an engine keeps, beside the KV blocks of its attention layers.

This is vLLM 0.32 with ``mamba_cache_mode=align``, its default for such models (Qwen3-Next,
Nemotron-H):

* A block has hundreds of tokens, as many as a state is large. States are kept at the ends of
  blocks, in the same memory: a state takes one block for each group of its layers.
* Two are kept of a prompt: the last one before its last token, and the one where it leaves the
  blocks that were cached (its junction). Those in between are overwritten, and so are all during
  the answer.
* A prompt is resumed at the last kept state within its cached blocks. So the second prompt about a
  document finds nothing, and the third finds the junction of the second.
* A prompt that could be resumed at a state that is being computed waits for the next iteration.
* A prefill's chunks end at ends of blocks, and where a state is to be kept.
* A state's blocks are evicted like others, the least recently used first. A state is used when it
  is written or resumed; the blocks of a prompt when it has ended. A state is lost with any of its
  blocks.
* A running sequence needs two states besides its blocks.

Not modeled: ``prefix_match_unit`` below the block size, other retention intervals, and speculative
decoding. `tests/sim/test_sim_states.py` compares what is found with a real vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence

from laar_lab.sim.engine.blocks import BlockPool

_RUNNING = 2


class StatePool:
    """The states in an engine's memory.

    Args:
        pool: the memory.
        groups: number of groups of layers with a state.

    Attributes:
        running_blocks: number of blocks for the states of a running sequence.
    """

    def __init__(self, pool: BlockPool, groups: int) -> None:
        self._pool, self._groups = pool, groups
        self.running_blocks = _RUNNING * groups

    def resumable(self, hashes: Sequence[int], cached: int) -> int:
        """Return after how many of the `cached` leading blocks a prompt can be resumed."""
        if not self._groups:
            return cached
        pool = self._pool
        for count in range(cached, 0, -1):
            keys = self._keys(hashes[count - 1])
            if pool.match(keys, len(keys))[0] == len(keys):
                return count
        return 0

    def keep(self, hash_: int) -> None:
        """Keep the state after a block, or mark it as used; without room it is not kept."""
        keys, pool = self._keys(hash_), self._pool
        lost = [key for key in keys if not pool.match([key], 1)[0]]
        if len(lost) <= pool.free:
            pool.share([key for key in keys if key not in lost])
            pool.take(len(lost))
            pool.publish(lost, None)
            pool.release(keys, 0)

    def _keys(self, hash_: int) -> list[int]:
        """Return the keys of a state in the pool: negative, unlike those of KV blocks."""
        return [-1 - (hash_ * self._groups + group) for group in range(self._groups)]


def block_of(key: int, groups: int) -> int:
    """Return the KV block after which the state with this key was kept."""
    return (-1 - key) // groups
