"""How often prefixes are requested."""

import numpy as np
import pytest

from laar.prefix import demand as module
from laar.prefix.demand import HORIZON_S, PrefixDemand
from support.hashing import Hasher

HASHER = Hasher(b"key")
SHARED = "the same beginning of all prompts. " * 120


def chain(tail):
    return HASHER.chain([SHARED, tail * 400])


def test_shared_blocks_count_for_every_request_and_own_blocks_once():
    demand = PrefixDemand()
    for number in range(10):
        demand.note(chain(f"question number {number}, "), 0.0)
    shares, counts = demand.expected(chain("question number 3, "), 0.0)
    shared = len(SHARED) / chain("question number 3, ").total_bytes
    assert np.all(np.diff(shares) > 0)
    assert counts[shares < 0.9 * shared] == pytest.approx(10.0)
    assert counts[-1] == pytest.approx(1.0)
    unseen = demand.expected(chain("something else, "), 0.0)
    assert len(unseen[0]) < len(shares)
    assert demand.expected(HASHER.chain(["nobody asks for this, " * 400]), 0.0) is None


def test_counts_fade_and_clocks_may_jump():
    demand = PrefixDemand()
    for now in (0.0, 0.0, float("nan"), -1e12):
        demand.note(chain("x"), now)
    assert np.isfinite(demand.expected(chain("x"), 0.0)[1]).all()
    demand = PrefixDemand()
    demand.note(chain("x"), 0.0)
    assert demand.expected(chain("x"), HORIZON_S)[1][0] == pytest.approx(np.exp(-1.0))


def test_memory_is_capped_and_a_prompt_is_counted_at_few_depths(monkeypatch):
    monkeypatch.setattr(module, "MAX_PREFIXES", 100)
    demand = PrefixDemand()
    for number in range(50):
        demand.note(HASHER.chain([f"{number} " * 500_000]), 0.0)
    assert len(demand._seen) == 100
    assert len(demand.expected(HASHER.chain(["49 " * 500_000]), 0.0)[1]) <= 30
