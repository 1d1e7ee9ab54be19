"""Chains have equal hashes exactly for equal prefixes, and blocks end at fixed positions."""

import random
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.prefix import blocks as module
from laar.prefix.blocks import ENDS, MAX_HASHED_BYTES, Chain
from support.hashing import Hasher

HASHER = Hasher(b"secret")


def shared_blocks(a: Chain, b: Chain) -> int:
    """Count the leading hashes that two chains have in common, one by one."""
    pairs = zip(a.hashes, b.hashes, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def shared_bytes(a: str, b: str) -> int:
    pairs = zip(a.encode(), b.encode(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def blocks_by_counting(total_bytes: int) -> int:
    """Return the whole blocks in a prompt, by walking the tiers in the module's docstring."""
    end = blocks = 0
    while True:
        end += 64 if end < 4096 else 256 if end < 32768 else 1024
        if end > total_bytes:
            return blocks
        blocks += 1


@given(
    st.text(max_size=12_000).map(lambda text: text * 3),
    st.text(max_size=300),
    st.text(max_size=300),
)
def test_chains_share_exactly_the_whole_blocks_of_the_common_text(
    head: str, one: str, two: str
) -> None:
    a, b = head + one, head + two
    assert shared_blocks(HASHER.chain([a]), HASHER.chain([b])) == blocks_by_counting(
        shared_bytes(a, b)
    )


def test_a_block_is_never_more_than_a_sixteenth_of_the_prefix_before_it() -> None:
    ends = np.array(ENDS)
    sizes = np.diff(ends)
    assert (sizes[ends[:-1] >= 1024] * 16 <= ends[:-1][ends[:-1] >= 1024]).all()


def test_the_division_of_a_prompt_into_spans_does_not_matter() -> None:
    text = "日本語 and English, " * 50
    assert HASHER.chain([text]).hashes == HASHER.chain([text[:7], "", text[7:]]).hashes


def test_hashing_a_prompt_again_yields_the_same_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 8)
    hasher, rng = Hasher(b"secret"), random.Random(1)
    turns = [rng.choice(["a", "b"]) * rng.choice([100, 4096, 70_000]) for _ in range(12)]
    for _ in range(60):
        prompt, salt = turns[: rng.randrange(12)], rng.choice(["", "tenant"])
        rng.shuffle(turns)
        fresh = Hasher(b"secret").chain(prompt, salt)
        assert hasher.chain(prompt, salt).hashes == fresh.hashes


def test_a_different_key_or_salt_shares_nothing() -> None:
    text = ["a" * 1000]
    mine = HASHER.chain(text)
    for other in (Hasher(b"other").chain(text), HASHER.chain(text, salt="tenant")):
        assert not set(mine.hashes) & set(other.hashes)
    assert mine.hashes == Hasher(b"secret").chain(text, salt="").hashes


def test_fractions_refer_to_the_whole_prompt() -> None:
    chain = HASHER.chain(["a" * 4096, "b" * 300])
    shares = [chain.fraction(blocks) for blocks in (0, 1, 64, 65)]
    assert shares == pytest.approx([0, 64 / 4396, 4096 / 4396, 4352 / 4396])
    assert HASHER.chain([]).fraction(0) == 0


def test_text_beyond_the_limit_is_counted_but_not_hashed() -> None:
    chain = HASHER.chain(["a" * (2 * MAX_HASHED_BYTES)])
    assert len(chain) == len(ENDS) - 1
    assert chain.fraction(len(chain)) == 0.5
