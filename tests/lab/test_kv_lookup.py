"""Key-value look-ups fit the given length, share no keys, and can be read by the solver."""

from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.features import Features
from laar_lab.kv_lookup import LANGUAGES, LENGTHS_TOKENS, queries, solve
from laar_lab.tokens import count_tokens
from support.exploring import examples
from support.features import features_of

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("length", LENGTHS_TOKENS)
def test_a_prompt_is_the_longest_that_fits_and_contains_its_answer(
    language: str, length: int
) -> None:
    (query,) = queries(languages=[language], lengths_tokens=[length], per_cell=1, seed=3)
    prompt = query.prompt
    tokens = count_tokens(prompt)
    pair_tokens = 14  # a pair has 80 characters
    assert length - pair_tokens <= tokens <= length
    data = orjson.loads(prompt[prompt.index("{") : prompt.rindex("}") + 1])
    assert data[query.key] == query.answer
    assert all(UUID4.fullmatch(text) for pair in data.items() for text in pair)
    assert solve(prompt) == (query.key, query.answer, language, tokens)
    assert query.prompt == prompt
    assert features_of(prompt, tokens) == Features(language, length, "kv-lookup")


def test_different_cells_and_splits_and_seeds_use_different_keys() -> None:
    drawn = [
        query
        for seed in (0, 1)
        for split in ("fit", "evaluate")
        for query in queries(per_cell=5, seed=seed, split=split)
    ]
    assert len({query.key for query in drawn} | {query.answer for query in drawn}) == 2 * len(drawn)
    assert len({query.id for query in drawn}) == len(drawn) == 2 * 2 * 15 * 5
    assert queries(per_cell=5, seed=1, split="evaluate") == drawn[-75:]


@settings(max_examples=examples(50))
@given(st.text())
def test_other_prompts_have_no_solution(text: str) -> None:
    assert solve(text) is None


def test_the_words_of_every_language_are_recognized() -> None:
    for query in queries(languages=["ko", "ru", "ar", "hi", "de", "x-y"], per_cell=1)[::5]:
        assert (solve(query.prompt) or ())[:3] == (query.key, query.answer, query.language)
