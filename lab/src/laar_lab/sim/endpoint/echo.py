"""Answers that a client can check to the last letter (``echo``).

A harness that injects faults has to distinguish a right answer from one that is cut short, mixed up
with another, or made by a model that was not asked. So an echoing endpoint repeats a mark that
holds its own model's name, the name that the request asked for, and a digest of the question. The
text depends on nothing else, and `echo_text` gives it to both sides.
"""

from __future__ import annotations

import xxhash

from laar_lab.tokens import ASCII_PER_TOKEN

ECHO_TOKENS = 16
"""Length of an answer whose request sets no limit."""


def echo_text(*, model: str, asked: str, question: str, tokens: int) -> str:
    """Return the answer: ``model<asked|digest>`` over and over, up to this many tokens.

    Args:
        model: the model that answers.
        asked: the request's `model`.
        question: the users' part of the prompt.
        tokens: tokens of the answer.
    """
    mark = f"{model}<{asked}|{xxhash.xxh3_64_hexdigest(question.encode())}> "
    chars = tokens * ASCII_PER_TOKEN
    return (mark * (chars // len(mark) + 1))[:chars]
