"""Prompts are resumed where an engine with a recurrent state kept one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.index import Receipt
from laar.prefix.match import Grid
from laar.prefix.states import MAX_STATES
from laar.prefix.tokens import Stored, hash_blocks, root
from laar.request import Api, Request

BLOCK = 1_152
"""Tokens per block of a tiny Qwen3-Next in vLLM; of four bytes each here."""


@dataclass
class Engine:
    """vLLM with ``mamba_cache_mode=align``: blocks by content, and states after some of them."""

    unit: int = BLOCK
    size: int = BLOCK
    blocks: set[str] = field(default_factory=set)
    states: set[str] = field(default_factory=set)

    def run(self, prompt: str) -> int:
        """Compute a prompt; return the tokens found."""
        tokens = len(prompt) // 4
        ends = range(self.size, tokens, self.size)
        cached = max((n for n in ends if prompt[: 4 * n] in self.blocks), default=0)
        kept = (n for n in range(self.unit, tokens, self.unit) if prompt[: 4 * n] in self.states)
        last = (tokens - 1) // self.unit * self.unit
        found = max((n for n in kept if n // self.size * self.size <= cached), default=0)
        self.blocks.update(prompt[: 4 * n] for n in ends)
        self.states.update(prompt[: 4 * n] for n in (last, cached) if n)
        return found


def documents(rng: random.Random) -> str:
    """A document of 3,000 tokens, and a new question of 600."""
    at = rng.randrange(40)
    return (f"document {at} " * 2_000)[:12_000] + (f"question {rng.random()} " * 200)[:2_400]


def agents(rng: random.Random, texts: dict[int, str]) -> str:
    """A conversation that grows by 40 to 900 tokens each turn, and begins again at 15,000."""
    at = rng.randrange(8)
    text = texts.get(at, "")
    text = text if len(text) < 60_000 else ""
    more = 4 * rng.randint(40, 900)
    texts[at] = text + (f"turn {rng.random()} of {at} " * 200)[: more if text else 8_000]
    return texts[at]


@pytest.mark.parametrize("in_flight", [0, 20])
@pytest.mark.parametrize("unit", [BLOCK, 16])
@pytest.mark.parametrize("kind", ["documents", "agents"])
def test_what_is_believed_without_events_is_what_the_engine_finds(
    kind: str, unit: int, in_flight: int
) -> None:
    rng, engine, texts = random.Random(1), Engine(unit), dict[int, str]()
    open_: deque[tuple[Receipt, float, int]] = deque()
    beliefs = PrefixBeliefs(key=b"k", max_bytes=64 << 20)
    beliefs.make_room(2)
    beliefs.set_capacity(0, 10_000_000)
    beliefs.states.use(0, Grid(BLOCK, unit))
    believed = found = total = 0.0
    for number in range(400):
        prompt = documents(rng) if kind == "documents" else agents(rng, texts)
        asked = Request(id="", api=Api.CHAT, spans=(prompt,), chars=len(prompt))
        match = beliefs.look_up(asked, "", ["m"], np.array([len(prompt) / 4]), float(number))
        tokens = len(prompt) // 4
        here = engine.run(prompt)
        if number >= 100:
            believed += match.shares[0] * tokens
            found += here
            total += tokens
        open_.append((beliefs.insert(0, match.chain, float(number)), here / tokens, tokens))
        if len(open_) > in_flight:
            beliefs.settle(*open_.popleft(), "m")
    assert found / total > 0.3
    assert abs(believed - found) / total <= 0.05
    assert beliefs.index.forgotten_blocks["disproved"] == 0


def test_an_engine_that_keeps_every_state_is_rounded_down_to_its_blocks() -> None:
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    beliefs.make_room(2)
    prompt = Request(id="", api=Api.CHAT, spans=("word " * 2_000,), chars=10_000)
    for slot, grid in enumerate((Grid(528, 528, everywhere=True), None)):
        beliefs.states.use(slot, grid)
        chain = beliefs.chain(prompt)
        beliefs.settle(beliefs.insert(slot, chain, 0.0), None)
    shares, *_ = beliefs.match(beliefs.chain(prompt))
    assert shares.tolist() == pytest.approx([4 * 528 / 2_500, 9_984 / 10_000])


@pytest.mark.parametrize("forget", [PrefixBeliefs.drop, PrefixBeliefs.restarted])
def test_states_of_a_removed_or_restarted_engine_are_forgotten(
    forget: Callable[[PrefixBeliefs, int], None],
) -> None:
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    beliefs.make_room(1)
    text = "word " * 4_000
    long, short = (
        beliefs.chain(Request(id="", api=Api.CHAT, spans=(text[:size],), chars=size))
        for size in (20_000, 10_000)
    )
    for _ in range(2):
        beliefs.states.use(0, Grid(16, 16))
        beliefs.settle(beliefs.insert(0, long, 0.0), None)
        assert beliefs.match(short)[0][0] == 0.0  # its last state is behind this
        beliefs.settle(beliefs.insert(0, short, 0.0), None)
        assert beliefs.match(short)[0][0] > 0.9
        forget(beliefs, 0)


@pytest.mark.parametrize("states_first", [True, False])
def test_with_events_a_prompt_is_resumed_at_the_last_state_that_is_left(states_first: bool) -> None:
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    beliefs.make_room(1)
    held, size, ids = beliefs.blocks_held, 16, np.arange(160, dtype=np.uint32)
    held.emptied(0, "m")
    text = Request(id="", api=Api.CHAT, model="m", spans=("word " * 160,), chars=800, tokens=160)
    chain = beliefs.chain(text)
    names = list(range(1, 11))
    blocks = Stored(hashes=names, ids=ids, block_size=size, session="s")
    states = Stored(hashes=[4, 8], is_state=True)
    held.stored(0, "m", Stored(hashes=[99], ids=ids[:size] + 999, block_size=size))
    assert held.expect("s", 0, chain, 160.0)
    for event in (states, blocks) if states_first else (blocks, states):
        held.stored(0, "m", event)
    held.answered("s", 160)
    receipt = beliefs.insert(0, chain, 0.0)
    beliefs.settle(receipt, 0.0, 160, "m")

    def share() -> float:
        return float(beliefs.match(chain)[0][0])

    assert share() == pytest.approx(8 * size / 160)
    held.removed(0, [8], is_state=True)
    assert share() == pytest.approx(4 * size / 160)
    for number in range(2):
        held.stored(0, "m", Stored(hashes=range(99, 99 + MAX_STATES + number), is_state=True))
    assert share() == 0.0  # too many: it starts anew
    held.stored(0, "m", Stored(hashes=[4], is_state=True))
    assert share() == pytest.approx(4 * size / 160)
    held.removed(0, [4])
    assert share() == 0.0
    beliefs.settle(beliefs.insert(0, chain, 0.0), 0.0, 160, "m")
    assert beliefs.index.forgotten_blocks["disproved"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_large_blocks_shown_by_events_count_with_the_tokens_they_have(seed: int) -> None:
    rng = random.Random(seed)
    beliefs, size = PrefixBeliefs(key=b"k", max_bytes=64 << 20), rng.choice([16, 528, 1_056])
    beliefs.make_room(1)
    held, shared = beliefs.blocks_held, rng.randint(1_500, 9_000)
    held.emptied(0, "m")
    document = [rng.randrange(1_000) for _ in range(shared)]
    for number in range(4):
        ids = document + [rng.randrange(1_000) for _ in range(rng.randint(20, 1_500))]
        text = "".join(f"{each:03} " for each in ids)  # four bytes for each token
        asked = Request(id="", api=Api.CHAT, model="m", spans=(text,), chars=len(text))
        match = beliefs.look_up(asked, "", ["m"], np.array([len(ids)]), float(number))
        if number > 1:
            expected = shared // size * size / len(ids)
            assert match.shares[0] == pytest.approx(expected, abs=0.01 + 128 / len(ids))
        own = hash_blocks(np.array(ids, np.uint32), size, root("", ""))
        event = Stored(hashes=own, ids=np.array(ids[: len(own) * size]), block_size=size)
        held.stored(0, "m", event)
        held.stored(0, "m", Stored(hashes=own, is_state=True))
        held.learn("m", match.chain, len(ids), size, own)
        beliefs.settle(beliefs.insert(0, match.chain, float(number)), None, len(ids), "m")


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_what_events_show_ages_if_states_are_lost_without_an_event(lost: float) -> None:
    """SGLang's events have blocks, but no states: it finds less than it shows."""
    rng, block = random.Random(2), 64
    beliefs = PrefixBeliefs(key=b"k", max_bytes=64 << 20)
    beliefs.make_room(1)
    beliefs.set_capacity(0, 10_000_000)
    held = beliefs.blocks_held
    held.emptied(0, "m")
    known: dict[int, Stored] = {}
    believed = found = total = 0.0
    for number in range(300):
        topic = rng.randrange(12)
        text = f"{topic:02} " + f"topic {topic} " * 1_500
        ids = np.arange(3_000, dtype=np.uint32) + 10_000 * topic
        asked = Request(id="", api=Api.CHAT, model="m", spans=(text,), tokens=len(ids))
        match = beliefs.look_up(asked, "", ["m"], np.array([3_000.0]), float(number))
        here = 0.0 if topic not in known or rng.random() < lost else 46 * block / 3_000
        if number >= 100:
            believed, found, total = believed + match.shares[0], found + here, total + 1
        receipt = beliefs.insert(0, match.chain, float(number))
        own = hash_blocks(ids, block, root("", ""))
        if topic not in known:
            known[topic] = Stored(hashes=list(own), ids=ids[: 46 * block], block_size=block)
            held.stored(0, "m", known[topic])
            held.learn("m", match.chain, 3_000, block, own)
        if rng.random() < 0.1:  # an eviction, of which events tell
            evicted = known.pop(topic)
            held.removed(0, evicted.hashes)
        beliefs.settle(receipt, here, 3_000, "m", float(match.shares[0]))
    assert found / total > 0.3
    assert believed / total == pytest.approx(found / total, abs=0.01 if not lost else 0.1)
