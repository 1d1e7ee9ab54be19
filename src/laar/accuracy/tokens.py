"""Estimate a prompt's length from its number of characters, by model and language.

This is a first guess, by the capability artifact or by a rough figure for the language, and takes
the same time for any prompt. It decides the length bucket, which doubles each time, and serves
until an engine has reported a length: `laar.prefix.lengths` learns from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

# Rough figures for today's tokenizers on prose.
_CHARS_PER_TOKEN = {"en": 4.0, "ja": 1.5, "zh": 1.5, "ko": 1.6, "ru": 3.0, "ar": 2.6}
_OTHER_CHARS_PER_TOKEN = 2.5
_LEAST, _MOST = 0.2, 20.0  # no tokenizer uses 5 tokens per character, or 1 per 20

_MAX_KEPT = 256  # cached estimates, one per set of models and language


def rough_tokens(chars: int, language: str) -> float:
    """Return the tokens of `chars` characters for a usual tokenizer."""
    return chars / _CHARS_PER_TOKEN.get(language, _OTHER_CHARS_PER_TOKEN)


class TokenEstimator:
    """Tokens per character, by model and language.

    Args:
        measured: characters per token by model, then language.
    """

    def __init__(self, measured: Mapping[str, Mapping[str, float]]) -> None:
        self._measured = measured
        self.tokens_per_char = lru_cache(_MAX_KEPT)(self._tokens_per_char)
        """Returns tokens per character for some models and a language: (len(models),), and their
        mean over the measured models."""

    def _tokens_per_char(
        self, models: tuple[str, ...], language: str
    ) -> tuple[NDArray[np.float64], float]:
        known = {
            name: min(max(of[language], _LEAST), _MOST)
            for name, of in self._measured.items()
            if language in of
        }
        mean = rough_tokens(1, language)
        if known:
            mean = exp(-sum(map(log, known.values())) / len(known))
        return np.array([1.0 / known[m] if m in known else mean for m in models]), mean
