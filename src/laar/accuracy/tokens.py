"""Estimate a prompt's length in tokens without a tokenizer.

Tokens are estimated as characters divided by characters per token, by language and model. The ratio
starts from the capability artifact, or from a rough figure for the language, and then follows
`usage.prompt_tokens` as reported in sampled answers. The length of a Python string costs nothing,
so the estimate takes the same time for any prompt.

Usage is not trusted: a report outside the range of tokenizers is clipped, one report moves a cell
with many reports only slightly, and the number of cells is limited. Language and model do not fix
the ratio (Japanese prose and a Japanese question over English data differ by a factor of four), so
mixed traffic gets a mixed ratio; length buckets double, which absorbs most of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

MAX_TOKEN_CELLS = 4096
"""Maximum number of cells (a few hundred KB): 200 models in 20 languages."""

_FLEET = ""  # in place of the model, for all models together; no model has an empty name

# Rough figures for today's tokenizers on prose.
_CHARS_PER_TOKEN = {"en": 4.0, "ja": 1.5, "zh": 1.5, "ko": 1.6, "ru": 3.0, "ar": 2.6}
_OTHER_CHARS_PER_TOKEN = 2.5

_LOG_MIN, _LOG_MAX = log(0.2), log(20.0)  # no tokenizer uses 5 tokens per character, or 1 per 20
_MIN_CHARS = 400  # for shorter prompts, the chat template's tokens would be learned as the text's
_SLOWEST_RATE = 0.02  # share of the distance to a report; adapts to a new mix in about 50 reports
_MEASURED_REPORTS = 20.0  # weight of an artifact's ratio, in reports
_MAX_KEPT = 256  # cached estimates, one per set of models and language


class TokenEstimator:
    """Learns the ratio of characters to tokens, by model and language."""

    def __init__(self) -> None:
        # By model and language: log of characters per token, and the number of reports.
        self._cells: dict[tuple[str, str], tuple[float, float]] = {}
        self.tokens_per_char = lru_cache(_MAX_KEPT)(self._current_tokens_per_char)
        """Returns tokens per character for some models and a language: (len(models),), and their
        mean over the fleet."""

    def begin(self, measured: Mapping[str, Mapping[str, float]]) -> None:
        """Start from an artifact's ratios, except where reports already outweigh them.

        `measured` has characters per token by model, then language.
        """
        by_language: dict[str, list[float]] = {}
        for model, ratios in measured.items():
            for language, ratio in ratios.items():
                value = min(max(log(ratio), _LOG_MIN), _LOG_MAX)
                self._begin((model, language), value)
                by_language.setdefault(language, []).append(value)
        for language, values in by_language.items():
            self._begin((_FLEET, language), sum(values) / len(values))

    def estimate(self, chars: int, language: str, model: str = _FLEET) -> float:
        """Return the tokens of `chars` characters; without a model, the mean over the fleet."""
        return chars * exp(-self._current(model, language))

    def observe(self, chars: int, language: str, model: str, prompt_tokens: int) -> None:
        """Learn from one answer's usage, unless it is implausible or its prompt was short."""
        if prompt_tokens <= 0 or chars < _MIN_CHARS:
            return
        seen = min(max(log(chars / prompt_tokens), _LOG_MIN), _LOG_MAX)
        for key in ((model, language), (_FLEET, language)):
            value, reports = self._cells.get(key) or (self._current(*key), 1.0)
            rate = max(1 / (reports + 1), _SLOWEST_RATE)
            self._set(key, value + rate * (seen - value), reports + 1)

    def _set(self, key: tuple[str, str], value: float, reports: float) -> bool:
        """Set a cell; return False if it would be new and no cell is free."""
        if key not in self._cells and len(self._cells) >= MAX_TOKEN_CELLS:
            return False
        self._cells[key] = value, reports
        self.tokens_per_char.cache_clear()
        return True

    def _begin(self, key: tuple[str, str], value: float) -> None:
        known = self._cells.get(key)
        if known[1] <= _MEASURED_REPORTS if known else len(self._cells) < MAX_TOKEN_CELLS:
            self._set(key, value, _MEASURED_REPORTS)

    def _current_tokens_per_char(
        self, models: tuple[str, ...], language: str
    ) -> tuple[NDArray[np.float64], float]:
        logs = [self._current(model, language) for model in models]
        return np.exp(np.negative(logs)), exp(-self._current(_FLEET, language))

    def _current(self, model: str, language: str) -> float:
        """Return the cell's log ratio; if unknown, the fleet's, or else the language's."""
        known = self._cells.get((model, language)) or self._cells.get((_FLEET, language))
        if known is None:
            return log(_CHARS_PER_TOKEN.get(language, _OTHER_CHARS_PER_TOKEN))
        return known[0]
