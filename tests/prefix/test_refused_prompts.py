"""A prompt that the engine refuses makes the index forget nothing."""

import random

import numpy as np
import pytest
from test_prefix_evictions import chain_of

from laar.prefix.index import PrefixIndex


@pytest.mark.parametrize("seed", range(30))
def test_a_refused_prompt_of_any_size_costs_others_no_prefix(seed):
    rng = random.Random(seed)
    index = PrefixIndex(2)
    index.room_bytes[:] = room_bytes = rng.randint(1, 40) * 65_536
    chains = [chain_of(name, rng.randint(1, 3) * 65_536) for name in range(40)]
    for now, chain in enumerate(chains):
        index.settle(index.insert(rng.randrange(2), chain, float(now)))
    before = [index.shares(chain) for chain in chains]
    for number, slot in enumerate((0, 1, 0)):
        size = int(room_bytes * rng.uniform(0.1, 2.0))
        index.retract(index.insert(slot, chain_of(1000 + number, size), 99.0))
    for chain, shares in zip(chains, before, strict=True):
        assert np.allclose(index.shares(chain), shares)
    # The order of eviction is the same, too.
    index.settle(index.insert(0, chain_of(2000), 100.0))
    shares = [float(index.shares(chain)[0]) for chain in chains]
    kept = [share for share, was in zip(shares, before, strict=True) if was[0] > 0.0]
    assert sorted(kept[2:]) == kept[2:] or kept.count(1.0) >= len(kept) - 2
