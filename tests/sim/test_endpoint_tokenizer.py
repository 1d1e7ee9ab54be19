"""Token ids match the lab's token counts, and block hashes match a simple computation."""

from __future__ import annotations

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.endpoint.tokenizer import ROOT, VOCABULARY, block_hashes, token_ids
from laar_lab.tokens import count_tokens
from support.exploring import examples

texts = st.text(st.sampled_from("ab c{}\n値答é\U0001f600"), max_size=60) | st.text(max_size=60)


@given(texts)
@settings(max_examples=examples(150))
def test_the_number_of_ids_equals_the_token_count(text: str) -> None:
    ids = token_ids(text)
    assert len(ids) == count_tokens(text)
    assert all(0 <= token < VOCABULARY for token in ids.tolist())


@given(texts, texts)
@settings(max_examples=examples(150))
def test_appending_changes_at_most_the_last_token(text: str, more: str) -> None:
    before, after = token_ids(text), token_ids(text + more)
    kept = max(0, len(before) - 1)
    assert after[:kept].tolist() == before[:kept].tolist()


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=70), st.integers(1, 20), st.text())
@settings(max_examples=examples(60))
def test_blocks_are_chained_over_the_ids(numbers: list[int], size: int, salt: str) -> None:
    chained = xxhash.xxh3_64_intdigest(salt.encode(), seed=ROOT) if salt else ROOT
    expected = []
    for start in range(0, len(numbers) // size * size, size):
        raw = b"".join(number.to_bytes(4, "little") for number in numbers[start : start + size])
        chained = xxhash.xxh3_64_intdigest(raw, seed=chained)
        expected.append(chained)
    assert block_hashes(np.array(numbers, np.uint32), size, salt=salt) == expected
