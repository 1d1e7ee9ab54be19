"""How much text fits into a cache is learned from reported prompt lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_prefix_evictions import PROMPT_BYTES, chain_of

from laar.prefix.beliefs import BYTES_PER_TOKEN, PrefixBeliefs

PROMPTS = 40
ROOM_TOKENS = 8 * PROMPT_BYTES / BYTES_PER_TOKEN


def believed(bytes_per_token: float) -> tuple[int, PrefixBeliefs]:
    """Return how many of the last prompts a slot is believed to hold."""
    beliefs = PrefixBeliefs(key=b"test", max_bytes=8 << 20)
    beliefs.make_room(2)
    tokens = int(PROMPT_BYTES / bytes_per_token)
    for name in range(PROMPTS):
        beliefs.settle(beliefs.insert(0, chain_of(name), float(name)), None, tokens)
        beliefs.set_capacity(0, ROOM_TOKENS)  # as with each metrics page
    shares = [beliefs.match(chain_of(name))[0][0] for name in range(PROMPTS)]
    held = int(np.sum(np.array(shares) > 0.99))
    assert all(share > 0.99 for share in shares[PROMPTS - held :])
    return held, beliefs


@pytest.mark.parametrize("bytes_per_token", [1.6, 2.1, 4.0, 5.7])
def test_the_index_holds_as_many_prompts_as_fit_into_the_cache(
    bytes_per_token: float,
) -> None:
    held, _ = believed(bytes_per_token)
    assert held == math.floor(8 * bytes_per_token / BYTES_PER_TOKEN)


def test_a_slot_without_answers_has_the_mean_density() -> None:
    _, beliefs = believed(2.0)
    beliefs.set_capacity(1, ROOM_TOKENS)
    for name in range(8):
        beliefs.settle(beliefs.insert(1, chain_of(100 + name), 0.0), None)
    held = [beliefs.match(chain_of(100 + name))[0][1] > 0.99 for name in range(8)]
    assert held == [False] * 4 + [True] * 4


def test_the_density_of_a_slot_is_forgotten_when_its_endpoint_is_removed() -> None:
    _, beliefs = believed(4.0)
    of_the_last = beliefs.insert(1, chain_of(100), 0.0)
    beliefs.drop(1)
    before = beliefs.density.mean
    beliefs.settle(of_the_last, None, 100 * PROMPT_BYTES)
    beliefs.set_capacity(1, ROOM_TOKENS)
    for name in range(8):
        beliefs.settle(beliefs.insert(1, chain_of(200 + name), 0.0), None)
    assert all(beliefs.match(chain_of(200 + name))[0][1] > 0.99 for name in range(8))
    assert beliefs.density.mean == before


def test_bytes_per_token_that_an_engine_reports_are_bounded() -> None:
    for tokens in (1, 10**9):
        beliefs = PrefixBeliefs(key=b"test", max_bytes=8 << 20)
        beliefs.make_room(1)
        for name in range(PROMPTS):
            beliefs.settle(beliefs.insert(0, chain_of(name), float(name)), None, tokens)
        assert 0.2 < beliefs.density.mean < 20.0
