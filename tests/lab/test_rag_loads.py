"""The RAG workloads of the design note (4.3), and the hook's gain on them (6.4)."""

from __future__ import annotations

import numpy as np
import pytest

from laar_lab.workloads import rag


def top_share(load):
    """Return the share of accesses to the most popular fifth of a pool of 1000 documents."""
    counts = np.sort(np.bincount(np.concatenate(load), minlength=1000))
    return counts[-200:].sum() / counts.sum()


def test_workloads_are_reproducible_and_as_skewed_as_the_traces_of_the_paper():
    assert rag.topic(3, requests=20) == rag.topic(3, requests=20) != rag.topic(4, requests=20)
    assert all(len(set(context)) == 15 for context in rag.topic(0, requests=50))
    assert top_share(rag.topic(0)) == pytest.approx(0.577, abs=0.02)
    assert top_share(rag.zipf(0, 1.0)) == pytest.approx(0.749, abs=0.02)
    assert top_share(rag.zipf(0, 0.6)) == pytest.approx(0.498, abs=0.02)


GAIN = {
    "topic, 4 x 750": (lambda: rag.topic(0), 4, 750, 0.025, 0.28),
    "topic, 4 x 3000": (lambda: rag.topic(0), 4, 3000, 0.044, 0.33),
    "zipf 1.0, 4 x 3000": (lambda: rag.zipf(0, 1.0), 4, 3000, 0.058, 0.25),
    "zipf 0.6, 1 x 3000": (lambda: rag.zipf(0, 0.6), 1, 3000, 0.019, 0.10),
}


@pytest.mark.parametrize("name", GAIN)
def test_reordering_reaches_the_expected_hit_rate(name):
    load, endpoints, capacity_docs, before, must = GAIN[name]
    args = {"endpoints": endpoints, "capacity_docs": capacity_docs}
    plain = rag.replay(load(), reorder=False, valve=1.25, **args)
    aligned = rag.replay(load(), reorder=True, **args)
    assert plain.hit == pytest.approx(before, abs=0.002)
    assert aligned.hit >= must
    assert aligned.skew <= 1.3
