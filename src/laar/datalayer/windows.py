"""Read context windows from what engines say of themselves.

Each engine has its own document and its own member: ``max_model_len``, ``meta.n_ctx``,
``loaded_context_length``, ``context_length``, ``max_total_tokens``. What they have in common are
words, so members are read by words. What the engine was started with precedes what its model was
trained for, and both precede limits of the input alone. Limits of answers, of batches and of
anything else are not windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PAGES = ("/info", "/props", "/api/v0/models", "/api/ps")
"""Where engines say what their list of models leaves out: TGI, llama.cpp, LM Studio, Ollama."""

_WORD = re.compile("[A-Z]?[a-z]+")
_CONTEXT = frozenset({"context", "ctx"})
_LENGTH = frozenset({"len", "length", "token", "tokens", "limit", "size", "embeddings"})
_WHOLE = frozenset({"model", "total", "seq", "sequence", "position"})
_INPUT = frozenset({"input", "prompt"})
_OTHER = frozenset({"output", "completion", "generated", "new", "batch", "beam", "num", "min"})
_MORE = frozenset({"used", "cached", "cache", "sliding", "image", "price", "rate", "minute"})
_POSSIBLE = frozenset({"train", "max", "native", "original", "default", "position"})
_NAMES = ("id", "name", "model", "model_id", "model_path", "model_alias")

Stated = tuple[int, int]
"""How much a statement is worth (0 the most), and the tokens."""


def stated(entry: Mapping[str, Any]) -> Stated | None:
    """Return the window that an object states, in itself or one level below; None if none."""
    below = (each for each in entry.values() if isinstance(each, dict))
    found = [
        (rank, value)
        for part in (entry, *below)
        for key, value in part.items()
        if isinstance(value, int) and 1 < value < 1 << 40 and (rank := _rank(key)) is not None
    ]
    return min(found, default=None)


def windows(document: Any) -> Iterator[tuple[str, Stated]]:
    """Yield the windows that a document states, each with its model's name.

    The name is empty for what it states of the engine as a whole.
    """
    if not isinstance(document, dict):
        return
    if (own := stated(document)) is not None:
        yield "", own
    for entries in (document.get("data"), document.get("models")):
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and (found := stated(entry)) is not None:
                for name in {str(entry[key]) for key in _NAMES if isinstance(entry.get(key), str)}:
                    yield name, found


def _rank(key: str) -> int | None:
    """Return how much a member's number is worth as a window; None if it is none."""
    words = {word.lower() for word in _WORD.findall(key)}
    if words & (_OTHER | _MORE):
        return None
    if words & _INPUT:
        return 2 if words & _LENGTH and words & {"max", "limit"} else None
    if words & _CONTEXT:
        return 1 if words & _POSSIBLE else 0
    if words & _LENGTH and ("session" in words or ("max" in words and words & _WHOLE)):
        return 1 if words & {"train", "position"} else 0
    return None
