"""Retry knowledge without server state: the list of tried models that travels with the request.

The picker's answer names the models tried so far, the client sends the list back (LAAR, section
5.4). A tried model's cost is multiplied by a penalty for each time it was tried, so it is used
again only when nothing else is left; with deterministic decoding it would only repeat itself.

The list is the client's word. It is cut to a length, names that no endpoint serves are dropped, and
both are counted; it never fails a request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_TRIED",
    "MAX_TRIED_CHARS",
    "RETRY_PENALTY",
    "Tried",
    "format_tried",
    "is_exhausted",
    "parse_tried",
    "retry_factors",
]

MAX_TRIED = 64
"""Entries of the list that are read: several rounds over any fleet's models."""

MAX_TRIED_CHARS = 8192
"""Characters of the header that are looked at: 64 names of 128."""

RETRY_PENALTY = 100.0
"""What one earlier try multiplies a cost by: more than any two models' costs differ."""

_MAX_POWER = 6  # tries that count: the factor stays finite however often a model was tried


class Tried(NamedTuple):
    """The models tried, first to last, repeats kept; `ignored` entries were dropped."""

    models: tuple[str, ...] = ()
    ignored: int = 0


def parse_tried(header: str | None, known: Collection[str]) -> Tried:
    """Reads an ``x-laar-tried-models`` header; whatever is wrong in it is ignored and counted."""
    if not header:
        return Tried()
    cut = len(header) > MAX_TRIED_CHARS
    names = [name.strip() for name in header[:MAX_TRIED_CHARS].split(",", MAX_TRIED)]
    cut = cut or len(names) > MAX_TRIED
    models = tuple(name for name in names[:MAX_TRIED] if name in known)
    return Tried(models, min(len(names), MAX_TRIED) - len(models) + cut)


def format_tried(tried: Sequence[str], model: str) -> str:
    """The header to answer with after `model` was chosen."""
    return ",".join([*tried[-(MAX_TRIED - 1) :], model])


def is_exhausted(tried: Sequence[str], model: str, candidates: Collection[str]) -> bool:
    """Whether, with `model` tried as well, no candidate model is left untried."""
    return all(name == model or name in tried for name in candidates)


def retry_factors(
    models: Sequence[str], tried: Sequence[str], penalty: float = RETRY_PENALTY
) -> NDArray[np.float64]:
    """What each model's cost is multiplied by; shape (len(models),), all ones if none was tried."""
    if not tried:
        return np.ones(len(models))
    return np.array([penalty ** min(tried.count(model), _MAX_POWER) for model in models])
