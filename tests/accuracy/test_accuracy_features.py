"""Features: language by script, length buckets, task detectors, and characters per token."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.accuracy.features import Features, bucket_of, language_of, task_of
from laar.accuracy.tokens import TokenEstimator
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


def test_characters_per_token_are_those_measured_or_else_rough() -> None:
    per_char = TokenEstimator({"a": {"en": 8.0, "xx": 0.01}, "b": {"en": 2.0}}).tokens_per_char
    each, mean = per_char(("a", "b", "never seen"), "en")
    assert (each.tolist(), mean) == (pytest.approx([1 / 8, 1 / 2, 1 / 4]), pytest.approx(1 / 4))
    assert per_char(("a", "b"), "ja")[0].tolist() == pytest.approx([1 / 1.5] * 2)
    assert per_char(("a",), "xx")[1] == pytest.approx(5.0), "no tokenizer has 100 per character"
