"""Features: language by script, length buckets, task detectors, and characters per token."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.features import Features, bucket_of, language_of, task_of
from laar.accuracy.tokens import MAX_TOKEN_CELLS, TokenEstimator
from support.exploring import examples
from support.features import features_of

SLACK = 1.0625
"""A length belongs to a bucket up to this multiple of its edge, since lengths are estimates."""


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("", "en"),
        ("What is it?", "en"),
        ("Où est-ce ? 🙂", "en"),
        ("これは何ですか", "ja"),
        ("漢字とかな", "ja"),
        ("ｶﾀｶﾅ", "ja"),
        ("这是什么", "zh"),
        ("繁體字", "zh"),
        ("𠀀", "zh"),
        ("이것은 무엇입니까", "ko"),
        ("大韓民國 한국", "zh"),
        ("Что это?", "ru"),
        ("ما هذا؟", "ar"),
        ("מה זה", "he"),
        ("यह क्या है", "hi"),
        ("นี่คืออะไร", "th"),
        ("Τι είναι αυτό;", "el"),
        ("中文・标点", "zh"),
    ],
)
def test_language_is_recognized_by_script(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("words", ["これは何ですか", "这是什么", "Что это?"])
def test_either_end_of_a_long_text_can_determine_the_language(words: str) -> None:
    data = "0123456789abcdef " * 20_000
    assert language_of(words + data) == language_of(data + words) == language_of(words)
    assert language_of(data + words + data) == "en"


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [
        (-1, 512),
        (0, 512),
        (513, 1024),
        (4096, 4096),
        (4096.5, 8192),
        (4097, 8192),
        (8192, 8192),
        (65_536, 65_536),
        (65_537, 131_072),
        (1e30, 2**24),
        (math.inf, 2**24),
        (math.nan, 512),
    ],
)
def test_a_length_between_two_buckets_uses_the_longer_one(tokens: float, bucket: int) -> None:
    assert bucket_of(tokens * SLACK) == bucket


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ('JSON data: {"6ab6ea3e-f288-4f33-bad6-7f42bb75b03f": "x"}', "kv-lookup"),
        ("Fix this:\n```python\nx = 1\n```", "code"),
        ("here\ndef f(x):\n    return x", "code"),
        ("Please TRANSLATE this", "translation"),
        ("次の文を翻訳してください", "translation"),
        ("Summarize the report", "summary"),
        ("总结一下", "summary"),
        ("What is the capital of France?", "generic"),
        ("", "generic"),
    ],
)
def test_tasks_are_detected(text: str, task: str) -> None:
    assert task_of(text) == task


@pytest.mark.parametrize("named", ["QA", " qa ", "qa"])
def test_the_task_named_by_the_client_takes_precedence(named: str) -> None:
    assert features_of("Summarize", 10, task=named) == Features("en", 512, "qa")


@pytest.mark.long
@given(st.text(), st.text())
def test_any_text_and_task_yield_features(text: str, task: str) -> None:
    features = features_of(text, len(text), task=task)
    assert features.language in {"en", "ja", "zh", "ko", "ru", "ar", "he", "hi", "th", "el"}
    assert 0 < len(features.task) <= 32
    assert features.task.isascii()


def test_characters_per_token_are_learned_by_model_and_language() -> None:
    tokens = TokenEstimator()
    assert tokens.estimate(4000, "en", "a") == pytest.approx(1000)
    for _ in range(300):
        tokens.observe(6000, "en", "a", 1000)
        tokens.observe(2000, "en", "b", 1000)
    assert tokens.estimate(6000, "en", "a") == pytest.approx(1000, rel=0.01)
    assert tokens.estimate(2000, "en", "b") == pytest.approx(1000, rel=0.01)
    each, fleet = tokens.tokens_per_char(("a", "b"), "en")
    assert 6000 * each == pytest.approx([1000, 3000], rel=0.02)
    assert 6000 * fleet == pytest.approx(tokens.estimate(6000, "en"))
    assert tokens.estimate(1500, "ja", "a") == pytest.approx(1000)
    fleet = tokens.estimate(6000, "en", "never seen")
    assert 1000 < fleet < 3000


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(-5, 10**7), st.integers(-5, 10**12)), max_size=60))
def test_false_usage_cannot_move_a_ratio_out_of_tokenizers_range(
    reports: list[tuple[int, int]],
) -> None:
    tokens = TokenEstimator()
    for chars, prompt_tokens in reports:
        tokens.observe(chars, "en", "a", prompt_tokens)
    assert 1000 / 20.001 <= tokens.estimate(1000, "en", "a") <= 1000 / 0.1999


def test_the_number_of_cells_is_capped() -> None:
    tokens = TokenEstimator()
    for number in range(MAX_TOKEN_CELLS + 10):
        tokens.observe(4000, "en", f"m{number}", 2000)
    latest = f"m{MAX_TOKEN_CELLS + 9}"  # no cell is left for it, so the fleet's mean applies
    assert tokens.estimate(4000, "en", latest) == pytest.approx(2000, rel=0.01)
