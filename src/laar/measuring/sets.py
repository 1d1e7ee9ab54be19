"""Generated questions with checkable answers.

* `lookups`: find a key among many, at eight lengths, to test long prompts.
* `arithmetic`: sums and products, at three levels.
* `formats`: answers that must be exactly the given JSON.

They compare models only on questions of these kinds. A model that answers them correctly may be
wrong on a fleet's real questions, which `laar measure` reads from a file.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Sequence

from laar.client.until import Message
from laar.errors import SettingError, unknown
from laar.measuring.checks import CheckSpec
from laar.measuring.questions import Question

LOOKUP_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Nominal prompt lengths in tokens of six characters, spaced to show the time per token. Real
tokenizers produce two or three times as many, so prompts have 200 to 20,000 tokens and fit into
most engines' windows."""

_LOOKUP_CHARS = 6
_PAIR_CHARS = 80  # two UUIDs in JSON

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heath", "inlet", "jade")


def made_questions(sets: Sequence[str], number: int, seed: int = 0) -> list[Question]:
    """Return questions, cycling through all sets and levels, so that any prefix is balanced.

    Raise `SettingError` if a set does not exist.

    Args:
        sets: names from `SETS`.
        number: number of questions.
        seed: random seed; questions of different seeds have different ids.
    """
    for name in sets:
        if name not in SETS:
            raise SettingError(f"--set: {unknown('set', name, SETS)}")
    made = [SETS[name] for name in dict.fromkeys(sets)]
    return [made[at % len(made)](seed, at // len(made)) for at in range(number)]


def _lookup(seed: int, number: int) -> Question:
    index, level = divmod(number, len(LOOKUP_TOKENS))
    tokens = LOOKUP_TOKENS[level]
    name = f"kv-{seed}-{index}-{tokens}"
    key, value = _ids(name, 2)

    def ask() -> Sequence[Message]:
        rng = random.Random(f"order-{name}")
        ids = _ids(f"pairs-{name}", 2 * (tokens * _LOOKUP_CHARS // _PAIR_CHARS))
        pairs = list(zip(ids[::2], ids[1::2], strict=True))
        pairs.insert(rng.randrange(len(pairs) + 1), (key, value))
        text = f"JSON data: {json.dumps(dict(pairs))}"
        asked = f"Key: {key}. State the value stored under this key:"
        return [{"role": "user", "content": f"{text}\n\n{asked}"}]

    return Question(id=name, ask=ask, check=CheckSpec(contains=value), task="kv-lookup")


def _ids(seed: str, count: int) -> list[str]:
    rng = random.Random(seed)  # str seeds are hashed with SHA-512, hence stable across processes
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]


def _arithmetic(seed: int, number: int) -> Question:
    name = f"arithmetic-{seed}-{number}"
    rng = random.Random(name)
    a, b, c, d = (rng.randint(12, 989) for _ in range(4))
    text, value = (
        (f"{a} + {b}", a + b),
        (f"{a} * {b % 90 + 10} - {c}", a * (b % 90 + 10) - c),
        (
            f"({a} + {b}) * {c % 90 + 10} - {d} * {b % 9 + 2}",
            (a + b) * (c % 90 + 10) - d * (b % 9 + 2),
        ),
    )[number % 3]
    asked = f"What is {text}? End your answer with the number, in digits."
    return _question(name, asked, CheckSpec(number=value))


def _formats(seed: int, number: int) -> Question:
    name = f"formats-{seed}-{number}"
    rng = random.Random(name)
    words = rng.sample(_WORDS, 4)
    counts = {word: rng.randint(1, 99) for word in words}
    listed = ", ".join(f"{word} {count}" for word, count in counts.items())
    text, value = (
        ("an object with each name as a key and its count as the value", counts),
        ("a list of the names, sorted by the alphabet", sorted(words)),
        (
            'an object with the keys "largest" (the name with the largest count) and "total" '
            "(the sum of the counts)",
            {"largest": max(counts, key=counts.__getitem__), "total": sum(counts.values())},
        ),
    )[number % 3]
    asked = f"Names and counts: {listed}. Answer with JSON and nothing else: {text}."
    return _question(name, asked, CheckSpec.model_validate({"json": value}))


def _question(name: str, text: str, check: CheckSpec) -> Question:
    return Question(id=name, ask=lambda: [{"role": "user", "content": text}], check=check)


SETS: dict[str, Callable[[int, int], Question]] = {
    "lookups": _lookup,
    "arithmetic": _arithmetic,
    "formats": _formats,
}
"""Functions that make a question from a seed and a number, by set name."""
