from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.decision import Completion
from laar.core.director import Director
from laar.prefix import lengths as lengths_module
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.lengths import PromptLengths
from support.directors import director_of
from support.hashing import Hasher
from support.requests import request_of

HASHER = Hasher(b"k")
WORDS = [
    "the",
    "price",
    "of",
    "a",
    "ticket",
    "to",
    "every",
    "city",
    "was",
    "higher",
    "than",
    "people",
    "had",
    "expected",
]


def prose(rng: random.Random, chars: int) -> str:
    return " ".join(rng.choices(WORDS, k=chars // 6))


def numbers(rng: random.Random, chars: int) -> str:
    return "".join(
        f'{{"id": {rng.randrange(10**6)}, "x": {rng.random():.6f}}},' for _ in range(chars // 32)
    )


def code(rng: random.Random, chars: int) -> str:
    return "".join(
        f"    if a[{rng.randrange(99)}] == b.c(d):\n        e += f({rng.choice(WORDS)})\n"
        for _ in range(chars // 55)
    )


def japanese(rng: random.Random, chars: int) -> str:
    return "".join(rng.choices("東京都の料金は人々が思うよりも高い。切符", k=chars))


def learn(lengths: PromptLengths, texts: list[str], model: str, tokens: int) -> None:
    """Report the tokens of a prompt once."""
    text = "".join(texts).encode()
    chain = HASHER.chain_of(text)
    lengths.estimate(chain, text, [model], np.ones(1))
    lengths.learn(chain, model, tokens)


def estimate(
    lengths: PromptLengths, texts: list[str], models: list[str], guess: list[float]
) -> list[float]:
    """Return the estimated tokens of a prompt by model."""
    text = "".join(texts).encode()
    found = lengths.estimate(HASHER.chain_of(text), text, models, np.array(guess))
    return [float(tokens) for tokens in found]


CHARS_PER_TOKEN = {prose: 4.6, numbers: 1.9, code: 2.9, japanese: 1.3}


def tokens_of(parts: list[tuple[object, str]]) -> int:
    return int(sum(len(text) / CHARS_PER_TOKEN[make] for make, text in parts)) + 12  # type: ignore[index]


def fleet() -> Director:
    return director_of(
        "a:1",
        assessor=CapabilityAssessor(CapabilityModel()),
        prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 26),
    )


@pytest.mark.long
@pytest.mark.parametrize("reported", [1.0, 7 / 120])
def test_nine_in_ten_prompts_of_mixed_traffic_are_estimated_within_15_percent(
    reported: float,
) -> None:
    """There are four kinds of conversations with different densities; few answers report tokens."""
    director, rng, errors = fleet(), random.Random(4), []
    conversations = []
    for number in range(500):
        if len(conversations) < 40 or rng.random() < 0.1:
            make = rng.choice(list(CHARS_PER_TOKEN))
            conversations.append((make, [(prose, prose(rng, 300))]))
        make, parts = conversations[
            rng.randrange(max(0, len(conversations) - 40), len(conversations))
        ]
        if len(parts) < 12:
            parts.append((make, make(rng, rng.randrange(600, 4000))))
        request = request_of(*(text for _, text in parts), marks=("api=chat",))
        decision = director.decide(request, float(number))
        real = tokens_of(parts)
        if number >= 450:
            errors.append(abs(decision.tokens / real - 1.0))
        said = real if rng.random() < reported else None
        end = Completion(status=200, cause="complete", latency_s=0.5, prompt_tokens=said)
        director.settle(decision, end)
    assert np.quantile(errors, 0.9) <= 0.15


PAGES = Path(__file__).parents[2]
PIECE = re.compile(r" ?[A-Za-z]{1,7}|\d{1,3}| ?[^\w\s]{1,2}|\s+|[^\x00-\x7f]|_")
"""Approximate the tokens of a byte-pair encoding."""


@cache
def page(suffix: str) -> tuple[str, ...]:
    """Return the contents of this repository's files with this suffix."""
    folders = {".md": "docs", ".py": "src/laar", ".json": "docs", ".yaml": "deploy"}
    found = sorted((PAGES / folders[suffix]).rglob(f"*{suffix}"))
    texts = (path.read_text(encoding="utf-8") for path in found)
    return tuple(text for text in texts if len(text) > 1500)


def excerpt(rng: random.Random, suffix: str, chars: int) -> str:
    text = rng.choice(page(suffix))
    start = rng.randrange(max(1, len(text) - chars))
    return text[start : start + chars]


@pytest.mark.long
def test_turns_of_prose_and_code_and_data_are_estimated_within_15_percent() -> None:
    """Turns like an agent's: a page, then files or tables. One answer in seventeen is read."""
    director, rng, errors = fleet(), random.Random(7), []
    talks: list[list[str]] = []
    for number in range(600):
        if len(talks) < 30 or rng.random() < 0.1:
            talks.append([excerpt(rng, ".md", 900)])
        talk = rng.choice(talks[-30:])
        suffix = rng.choice([".md", ".py", ".json", ".yaml"])
        talk.append(excerpt(rng, suffix, int(rng.lognormvariate(7.0, 1.0))))
        if len(talk) > 12:
            talks.remove(talk)
        spans = (each for text in talk for each in ("\x1euser\x1f", text))
        request = request_of(*spans, question=talk[0], marks=("api=chat",))
        decision = director.decide(request, float(number))
        real = sum(len(PIECE.findall(text)) + 5 for text in talk)
        if number >= 300:
            errors.append(abs(decision.tokens / real - 1.0))
        said = real if rng.random() < 1 / 17 else None
        end = Completion(status=200, cause="complete", latency_s=0.5, prompt_tokens=said)
        director.settle(decision, end)
    assert np.quantile(errors, 0.9) <= 0.15


def test_a_conversation_is_estimated_from_its_own_reported_tokens() -> None:
    lengths = PromptLengths()
    old = ["a conversation of an unusual sort " * 200]
    new = [*old, "and one more turn of it " * 5]
    size = len("".join(new))
    for _ in range(50):
        learn(lengths, ["x" * 4000], "m", 1000)
    learn(lengths, old, "m", len(old[0]))  # one token per byte, four times as many as the others
    found = estimate(lengths, new, ["m", "n"], [1.0, 7.0])
    assert found[0] == pytest.approx(size, rel=0.05)
    assert found[1] == pytest.approx(7.0)  # nothing is known about that model


def test_an_image_is_estimated_from_earlier_images() -> None:
    lengths, guess = PromptLengths(), [1.0]

    def asks(number: int, images: int) -> list[str]:
        text = f"What do you see in the picture with the number {number}, and what is odd about it?"
        return ["\x1euser\x1f", text, *(f"\x1d{number}-{at}" + "0" * 28 for at in range(images))]

    for number in range(20):
        texts = asks(number, number % 3)
        learn(lengths, texts, "m", 25 + 1600 * (number % 3))
    for images in (0, 1, 2):
        texts = asks(100, images)
        found = estimate(lengths, texts, ["m"], guess)[0]
        assert found == pytest.approx(25 + 1600 * images, rel=0.15)


def test_short_prompts_include_the_tokens_of_the_template() -> None:
    lengths = PromptLengths()
    for number in range(20):
        texts = ["\x1euser\x1f", f"Is {number} a prime?"]
        learn(lengths, texts, "m", 41)  # 35 of these are the template's
    texts = ["\x1euser\x1f", "Is 977 a prime?"]
    found = estimate(lengths, texts, ["m"], [4.0])[0]
    assert found == pytest.approx(41, rel=0.15)


def test_without_reports_the_guess_is_used_and_false_reports_are_clipped() -> None:
    lengths, text = PromptLengths(), ["x" * 4000]
    guess = [1000.0]
    assert estimate(lengths, text, ["m"], guess)[0] == 1000.0
    for tokens in (-5, 0):
        learn(lengths, text, "m", tokens)
    assert estimate(lengths, text, ["m"], guess)[0] == 1000.0
    learn(lengths, text, "m", 10**15)
    assert estimate(lengths, text, ["m"], guess)[0] <= 6.0 * 4000
    assert np.isfinite(estimate(lengths, text, ["m"], [0.0])).all()


@given(st.lists(st.text(max_size=300), max_size=30), st.integers(1, 10**7))
def test_any_text_has_a_length(texts: list[str], tokens: int) -> None:
    lengths = PromptLengths()
    for _ in range(3):
        learn(lengths, texts, "m", tokens)
        found = estimate(lengths, texts, ["m"], [3.0])
        assert np.isfinite(found).all()
        assert min(found) > 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_module, "MAX_KNOWN", 10)
    monkeypatch.setattr(lengths_module, "MAX_MODELS", 10)
    lengths = PromptLengths()
    for number in range(100):
        text = [f"{number} " + "x" * 1000]
        learn(lengths, text, str(number), 300)
    assert len(lengths.known) <= 10
    assert len(lengths._models) <= 10


@pytest.mark.parametrize("overlap", [0, 1000, 9000])
@pytest.mark.parametrize("make", [prose, numbers, code])
def test_counts_that_leave_out_what_was_cached_are_not_taken_for_lengths(
    make: Callable[[random.Random, int], str], overlap: int, figure: Callable[..., None]
) -> None:
    """The engine counts the tokens that it processed, and prompts share their first characters."""
    rng, lengths = random.Random(4), PromptLengths()
    text = shared = prose(rng, overlap)
    for n in range(60):
        cached = len(text) if n else 0
        text += make(rng, rng.randrange(500, 6000))
        count = int((len(text) - cached) / CHARS_PER_TOKEN[make])
        learn(lengths, [text], "m", max(1, count))
        text = text if n % 6 else shared
    text = shared + make(rng, 60_000)
    truth = len(text) / CHARS_PER_TOKEN[make]
    (found,) = estimate(lengths, [text], ["m"], [truth])
    figure("believed / true length, counts without what is cached", round(found / truth, 2), "1")
    assert 0.75 < found / truth < 1.3
