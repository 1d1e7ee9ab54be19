"""The value and the cost of fetching blocks from slower memory."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.decision import Completion
from laar.fleet.endpoints import Reading
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.tiers import FAR, HOST, worth
from laar.prefix.tokens import Stored, TokenBlocks, hash_blocks, root
from laar.request import Request
from support.directors import director_of
from support.exploring import examples
from support.requests import request_of

SIZE = 16
BLOCKS = 60
IDS = np.arange(SIZE * BLOCKS, dtype=np.uint32)
SECONDS_PER_TOKEN = 1e-4  # of models without measurements
BASE_S = 0.02


@given(kept=st.lists(st.integers(0, BLOCKS), min_size=3, max_size=3))
@settings(max_examples=examples(60))
def test_blocks_in_slower_tiers_are_valued_by_tier(kept):
    """The device holds the beginning of a prompt, the host more of it, and the disk the most."""
    device, host, far = sorted(kept)
    blocks, names = TokenBlocks(), list(range(1, BLOCKS + 1))
    blocks.stored(0, "m", Stored(hashes=names, ids=IDS, block_size=SIZE))
    blocks.stored(0, "m", Stored(hashes=names[:host], tier=HOST))
    blocks.stored(0, "m", Stored(hashes=names[:far], tier=FAR))
    blocks.removed(0, names[device:])
    assert blocks.blocks == far
    own, held = hash_blocks(IDS, SIZE, root("", "")), blocks._slots[0]
    assert worth(held.behind, own, far) == pytest.approx(0.2 * (host - device) + 0.4 * (far - host))
    # The device has fetched them.
    blocks.stored(0, "m", Stored(hashes=names, ids=IDS, block_size=SIZE))
    assert worth(held.behind, own, BLOCKS) == 0.0
    blocks.removed(0, names[device:])
    blocks.lost(0)
    assert not blocks._slots[0].behind


class Offloading:
    """A picker for engines that copy their caches to the host's memory."""

    def __init__(self, *names: str, fetch_share: float) -> None:
        self.prefixes = PrefixBeliefs(key=b"k", max_bytes=1 << 24)
        self.director = director_of(*names, prefixes=self.prefixes)
        table = self.director.table
        for slot, name in enumerate(names):
            table.read(name, Reading(waiting=0, running=0, kv_usage=0.0), 0.0)
            table.round_trip(name, 0.001, 0.0)
            self.prefixes.emptied(slot, "m")
        self.fetch_share = fetch_share
        self.held: dict[int, list[int]] = {}
        self.now = 0.0

    def request(self, seed: int, words: int) -> Request:
        text = " ".join(map(str, random.Random(seed).choices(range(1000), k=words)))
        return request_of(text, id=f"{seed} {self.now}")

    def ask(self, seed: int, words: int = 4000):
        """Serve a prompt; return its decision, and the seconds to its first token."""
        self.now += 10.0
        request = self.request(seed, words)
        decision = self.director.decide(request, self.now)
        ids = np.random.default_rng(seed).integers(0, 1000, words).astype(np.uint32)
        names = hash_blocks(ids, SIZE, root(f"engine {decision.slot}", ""))
        fetched = self.held.get(decision.slot) == list(names)
        cached = len(names) * SIZE if fetched else 0
        share = self.fetch_share if fetched else 0.0
        ttft_s = 0.001 + BASE_S + SECONDS_PER_TOKEN * (words - cached + share * cached)
        event = Stored(
            hashes=list(names),
            ids=ids[: len(names) * SIZE],
            block_size=SIZE,
            session=decision.flight.traced_as,
        )
        self.prefixes.blocks_held.stored(decision.slot, "m", event)
        self.director.answering(decision, self.now + ttft_s)
        end = Completion(
            status=200, cause="complete", latency_s=ttft_s + 0.1, ttft_s=ttft_s,
            prompt_tokens=words, cached_tokens=cached, completion_tokens=5,
        )  # fmt: skip
        self.director.settle(decision, end)
        blocks = self.prefixes.blocks_held
        blocks.stored(decision.slot, "m", Stored(hashes=list(names), tier=HOST))
        blocks.removed(decision.slot, list(names))  # as if others needed the device's memory
        self.held[decision.slot] = list(names)
        return decision, ttft_s


def test_a_prompt_goes_where_fetching_plus_computing_takes_the_least_time():
    fleet = Offloading("a", "b", fetch_share=0.1)
    # So that the size of a block is known.
    assert {fleet.ask(seed)[0].slot for seed in range(10, 16)} == {0, 1}
    first, _ = fleet.ask(1)
    again, _ = fleet.ask(1)
    assert again.slot == first.slot
    view, at = again.view, again.position
    assert 0.0 < view.fetched_tokens[at] < 0.5 * view.held_tokens[at]
    other = 1 - at
    assert view.fetched_tokens[other] == 0.0
    assert view.terms.prefill_s[at] < 0.5 * view.terms.prefill_s[other]
