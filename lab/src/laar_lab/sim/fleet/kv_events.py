"""KV events of simulated engines, as a picker follows them.

A picker identifies blocks by their token ids. Simulated prompts have none, so those of a block are
made from its hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from laar.core.director import Director
from laar.prefix.blocks import Chain
from laar.prefix.tokens import Stored, hash_blocks, root
from laar_lab.sim.engine import EngineSettings, KvEvent, block_of


def follow(
    director: Director, name: str, settings: EngineSettings, events: Sequence[KvEvent]
) -> None:
    """Tell a picker of events of an endpoint that its table has."""
    assert director.prefixes is not None
    held, slot = director.prefixes.blocks_held, director.table.slot(name)
    model, size = director.table.spec(slot).models[0], settings.block_size
    for event in events:
        blocks = [key for key in event.hashes if key >= 0]
        states = [block_of(key, settings.state_groups) for key in event.hashes if key < 0]
        if event.kind == "cleared":
            director.prefixes.emptied(slot, model)
        elif event.kind == "removed":
            held.removed(slot, blocks)
            held.removed(slot, states, is_state=True)
        elif states:
            held.stored(slot, model, Stored(hashes=states, is_state=True))
        else:
            ids = _ids(blocks, size)
            stored = Stored(hashes=blocks, parent=event.parent, ids=ids, block_size=size)
            held.stored(slot, model, stored)


def learn(
    director: Director, model: str, chain: Chain, tokens: int, blocks: Sequence[int], size: int
) -> None:
    """Tell a picker the blocks of a prompt, which it otherwise learns from the events' sessions."""
    assert director.prefixes is not None
    own = hash_blocks(_ids(blocks, size), size, root("", ""))
    director.prefixes.blocks_held.learn(model, chain, tokens, size, own)


def _ids(blocks: Sequence[int], size: int) -> npt.NDArray[np.uint32]:
    ids = np.zeros((len(blocks), size), np.uint32)
    ids[:, :2] = np.array(blocks, np.uint64).view(np.uint32).reshape(-1, 2)
    return ids.ravel()
