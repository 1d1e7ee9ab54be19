"""Prompt lengths in tokens, by the conversation and the kind of text.

One ratio of characters to tokens for a model and a language is off by two where prose, JSON and
code are mixed. Here the length of a prompt comes from the nearest source of three:

* the conversation, once one of its answers reported its tokens: its own tokens for a byte, for the
  part that is known and, as far as that part reaches, for the rest;
* else the kind of text: the body's format, whether there are tools, how much of the question is
  digits and signs, and of other scripts;
* else the given guess, with which both are mixed while little was reported.

A report is not trusted further than tokenizers go (`_LEAST`, `_MOST`). Memory is bounded by
`MAX_KNOWN` and `MAX_KINDS`. Lengths are bytes of UTF-8, as in `laar.prefix.blocks`.
"""

from __future__ import annotations

import math
import string
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import Chain

__all__ = ["PromptLengths", "kind_of"]

MAX_KNOWN = 20_000
"""Prompts with their tokens; about 6 MB. The oldest go."""

MAX_KINDS = 4096
"""Models times kinds; beyond it the table starts again."""

MAX_LOOK = 256
"""Blocks from a prompt's end that are looked up: a turn of 64 KiB and more."""

_LEAST, _MOST = 0.05, 5.0  # tokens for a byte
_LEAST_BYTES = 400  # below, the chat template's own tokens would be learned as the text's
_SLOWEST = 0.1  # of the distance to a report
_SIGNS = (string.digits + string.punctuation).encode()

Kind = tuple[str, ...]
Floats = npt.NDArray[np.float64]


def kind_of(question: str, marks: Sequence[str]) -> Kind:
    """The kind of a prompt's text. There are few kinds, since each has to be learned.

    Args:
        question: the last message; its head and tail are looked at.
        marks: marks of the body's shape; the number of turns does not count.
    """
    sample = question if len(question) <= 1000 else question[:500] + question[-500:]
    count = max(len(sample), 1)
    data = sample.encode("utf-8", "replace")  # no byte of another character is a sign
    signs = (len(data) - len(data.translate(None, _SIGNS))) / count
    wide = (len(data) - len(sample)) / count
    level = sum(signs > edge for edge in (0.06, 0.12, 0.25, 0.4))
    script = sum(wide > edge for edge in (0.05, 0.5, 1.2))
    return (*(mark for mark in marks if not mark.startswith("turns=")), f"{level}{script}")


class PromptLengths:
    """Learns tokens for a byte."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, dict[str, float]] = OrderedDict()
        self._kinds: dict[tuple[str, Kind], tuple[float, float]] = {}

    def estimate(self, chain: Chain, kind: Kind, models: Sequence[str], guess: Floats) -> Floats:
        """Tokens of a prompt for each model.

        Args:
            chain: the prompt.
            kind: the kind of its text.
            models: the models to estimate for.
            guess: tokens by another estimate; shape ``(len(models),)``, as the result.
        """
        total = chain.total_bytes
        if not total or not self._kinds:
            return guess
        share, known = self._nearest(chain)
        found = guess.copy()
        for at, model in enumerate(models):
            rate = max(float(guess[at]) / total, 1e-9)
            log, reports = self._kinds.get((model, kind), (0.0, 0.0))
            if reports:
                mixed = reports / (reports + 1.0)
                rate = math.exp(mixed * log + (1.0 - mixed) * math.log(rate))
            own = known.get(model) if known is not None else None
            if own is not None:
                # The part that is known, and the rest by both.
                rate = share * own + (1.0 - share) * (share * own + (1.0 - share) * rate)
            found[at] = rate * total
        return found

    def learn(self, chain: Chain, kind: Kind, model: str, tokens: int) -> None:
        """An answer reported the tokens of its prompt."""
        total = chain.total_bytes
        if tokens <= 0 or total < _LEAST_BYTES or not len(chain):
            return
        rate = min(max(tokens / total, _LEAST), _MOST)
        end = chain.hashes[-1]
        rates = self._known.setdefault(end, {})
        self._known.move_to_end(end)
        if len(rates) < 8 or model in rates:
            rates[model] = rate
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        log, reports = self._kinds.get((model, kind), (math.log(rate), 0.0))
        step = max(1.0 / (reports + 1.0), _SLOWEST)
        self._kinds[model, kind] = log + step * (math.log(rate) - log), reports + 1.0

    def _nearest(self, chain: Chain) -> tuple[float, dict[str, float] | None]:
        """The longest part of a prompt whose tokens are known: its share, and tokens for a byte."""
        hashes, known = chain.hashes, self._known
        for at in range(len(hashes) - 1, max(-1, len(hashes) - 1 - MAX_LOOK), -1):
            rates = known.get(hashes[at])
            if rates is not None:
                return chain.fraction(at + 1), rates
        return 0.0, None
