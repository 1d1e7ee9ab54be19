"""Answers that a client can verify character by character (``echo``).

A test harness that injects faults must distinguish a correct answer from one that is truncated,
mixed up with another, or made by the wrong model. An echoing endpoint therefore repeats a mark that
consists of the model's name, the requested name, and a digest of the question. The text depends on
nothing else; both sides compute it with `echo_text`.
"""

from __future__ import annotations

import xxhash

from laar_lab.tokens import ASCII_PER_TOKEN

ECHO_TOKENS = 16
"""Length of an answer if the request sets no limit."""


def echo_text(*, model: str, asked: str, question: str, tokens: int) -> str:
    """Return the answer: ``model<asked|digest>`` repeated up to a number of tokens.

    Args:
        model: the answering model.
        asked: the request's `model`.
        question: the users' part of the prompt.
        tokens: length of the answer in tokens.
    """
    mark = f"{model}<{asked}|{xxhash.xxh3_64_hexdigest(question.encode())}> "
    chars = tokens * ASCII_PER_TOKEN
    return (mark * (chars // len(mark) + 1))[:chars]
