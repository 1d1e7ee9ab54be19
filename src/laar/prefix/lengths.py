"""Prompt lengths in tokens, by the conversation and the signs of the text.

A ratio of characters to tokens is off by two where prose, JSON and code are mixed. Tokenizers agree
in their habits, though: most words are one token, a number is a token for every one to three
digits, a sign is about half a token, a line begins with one. So a text's length is a weighted count
of its signs and of the places where one class of signs follows another. On prose, code, markup,
tables and texts in twenty languages the weights below are within 15 % of four tokenizers for four
texts of five; two of five are where four bytes are taken for a token.

The weights of each model are learned from the lengths that its engines report (recursive least
squares); thirty reports make it nine texts of ten. Images and the tokens that a chat template adds
to a message are weights like the others.

A conversation, once one of its answers reported its tokens, has those for the part that is known;
the rest of it is weighed, and corrected as far as the known part was off.

Until a model's first report the given guess stands. A report is not trusted further than
tokenizers go (`_LEAST`, `_MOST`). Memory is bounded by `MAX_KNOWN` and `MAX_MODELS`. Lengths are
bytes of UTF-8, as in `laar.prefix.blocks`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import Chain

__all__ = ["DIGEST", "MESSAGE", "PromptLengths", "Weighed"]

MESSAGE = "\x1e"
"""Begins the role of a message among a prompt's texts."""
DIGEST = "\x1d"
"""Begins the digest of a part that is no text, such as an image."""

MAX_KNOWN = 20_000
"""Prompts with their tokens; about 6 MB. The oldest go."""

MAX_MODELS = 256
"""Models with weights of their own, 6 kB each; beyond it the table starts again."""

MAX_LOOK = 256
"""Blocks from a prompt's end that are looked up: a turn of 64 KiB and more."""

_WINDOWS, _WINDOW_CHARS = 12, 128
"""Samples of a longer text, and their length: 2 % off, and 20 us whatever the text is."""

_BEGINNINGS = 512
"""Texts whose beginning is looked at; of more, one in so many counts for all."""

_LEAST, _MOST = 0.05, 5.0  # tokens for a byte
_MOST_OF_IMAGE = 20_000.0
_MOST_SPREADS = 3.0  # how far off a report counts as
_RENEWAL = 0.005  # of what was not known at first, with each report: traffic changes

Floats = npt.NDArray[np.float64]

# Classes of signs: tokens for each of them, and for each that begins a run of its class.
_WEIGHTS = (
    ("sign", 0.48, 0.12),
    ("lower", 0.03, 0.72),
    ("upper", 0.17, 0.0),
    ("digit", 0.30, 1.05),
    ("space", 0.0, 0.22),
    ("line", 1.53, 0.0),
    ("first of two bytes", 0.0, 0.0),
    ("first of three bytes or four", 0.44, 0.0),
    ("further byte", 0.0, 0.37),
    ("mark between messages", 0.0, 0.0),
)
_COUNT = len(_WEIGHTS)
_TOKENS_OF_PROMPT, _TOKENS_OF_MESSAGE, _TOKENS_OF_IMAGE = 4.0, 4.0, 500.0


def _class_of(byte: int) -> int:
    if byte >= 0x80:
        return 8 if byte < 0xC0 else 6 if byte < 0xE0 else 7
    sign = chr(byte)
    if sign in "\x1d\x1e\x1f":
        return 9
    found = (sign.islower(), sign.isupper(), sign.isdigit(), sign == " ", sign in "\n\r\t")
    return 1 + found.index(True) if True in found else 0


_CLASS_OF = bytes(map(_class_of, range(256)))


def _features() -> Floats:
    """Turns counts of pairs of classes into counts of classes and of runs; the rest stays."""
    pairs = _COUNT * _COUNT
    matrix = np.zeros((2 * _COUNT + 3, pairs + 3))
    for before in range(_COUNT):
        for after in range(_COUNT):
            matrix[after, before * _COUNT + after] = 1.0
            matrix[_COUNT + after, before * _COUNT + after] = float(before != after)
    matrix[2 * _COUNT :, pairs:] = np.eye(3)
    return matrix


_FEATURES = _features()
_FIRST = np.array(
    [each for _, each, _ in _WEIGHTS]
    + [begun for _, _, begun in _WEIGHTS]
    + [_TOKENS_OF_PROMPT, _TOKENS_OF_MESSAGE, _TOKENS_OF_IMAGE]
)
# All weights may be off together, by a third, and each by a half.
_UNSURE = np.outer(0.3 * _FIRST, 0.3 * _FIRST) + np.diag((0.5 * _FIRST + 0.02) ** 2)
_SCATTER = 0.1  # of reports, for one and the same text


def _counts(texts: Sequence[str], share: float = 1.0) -> Floats:
    """Pairs of neighbouring classes in the end of a prompt; prompts, messages and images in it.

    Args:
        texts: the prompt.
        share: how much of it to look at, from its end.
    """
    tail = texts if share == 1.0 else _end_of(texts, share)
    ends = list(accumulate(map(len, tail)))
    size = ends[-1] if ends else 0
    if size <= _WINDOWS * _WINDOW_CHARS:
        sample = "".join(tail)
    else:
        places = range(0, size - _WINDOW_CHARS, size // _WINDOWS)
        sample = "".join([_window(tail, ends, at) for at in places])
    data = sample.encode("utf-8", "surrogatepass").translate(_CLASS_OF)
    classes = np.frombuffer(data, np.uint8)
    found = np.zeros(_COUNT * _COUNT + 3)
    if len(classes) > 1:
        pairs = np.bincount(classes[:-1] * np.uint8(_COUNT) + classes[1:], minlength=_COUNT**2)
        found[:-3] = pairs * (size / len(sample))
    nth = len(tail) // _BEGINNINGS | 1  # odd, for messages and their texts alternate
    begins = [text[:1] for text in tail[::nth]]
    found[-3:] = share == 1.0, nth * begins.count(MESSAGE), nth * begins.count(DIGEST)
    return found


def _window(texts: Sequence[str], ends: Sequence[int], at: int) -> str:
    """Some characters from a place of all texts together, which need not be joined for it."""
    nth = bisect_right(ends, at)
    start = at - ends[nth] + len(texts[nth])
    found = texts[nth][start : start + _WINDOW_CHARS]
    while len(found) < _WINDOW_CHARS and nth + 1 < len(texts):
        nth += 1
        found += texts[nth][: _WINDOW_CHARS - len(found)]
    return found


def _end_of(texts: Sequence[str], share: float) -> list[str]:
    left = math.ceil(share * sum(map(len, texts)))
    tail: list[str] = []
    for text in reversed(texts):
        if left <= 0:
            break
        tail.append(text[-left:])
        left -= len(text)
    return tail[::-1]


class _Weights:
    """The weights of one model."""

    def __init__(self) -> None:
        self._weights, self._unsure = _FIRST.copy(), _UNSURE.copy()
        self.of_counts: Floats = self._weights @ _FEATURES

    def learn(self, counts: Floats, tokens: float) -> None:
        """A prompt of these counts has so many tokens."""
        given = _FEATURES @ counts / tokens  # so that all prompts count alike
        swing = self._unsure @ given
        spread = _SCATTER**2 + float(given @ swing)
        most = _MOST_SPREADS * math.sqrt(spread)
        off = min(most, max(-most, 1.0 - float(self._weights @ given)))
        self._weights += swing * (off / spread)
        self._unsure -= np.outer(swing, swing) / spread
        self._unsure += _RENEWAL * (_UNSURE - self._unsure)
        self.of_counts = self._weights @ _FEATURES


class _Known(NamedTuple):
    """A prompt whose tokens were reported: its length, and the tokens that were expected."""

    tokens: float
    expected: float
    total_bytes: int


class Weighed(NamedTuple):
    """A prompt as it was looked at; holds no text.

    Args:
        known: its longest known part, by model.
        counts: counts of the rest, by the bytes of the known part.
    """

    known: Mapping[str, _Known]
    counts: Mapping[int, Floats]

    def part_of(self, model: str, total_bytes: int) -> tuple[_Known | None, int]:
        """A model's known part, if there is one, and how much of so long a prompt it is."""
        own = self.known.get(model)
        return own, 0 if own is None else min(own.total_bytes, total_bytes)


class PromptLengths:
    """Learns the tokens of prompts."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, dict[str, _Known]] = OrderedDict()
        self._models: dict[str, _Weights] = {}

    def weigh(self, chain: Chain, texts: Sequence[str], models: Sequence[str]) -> Weighed | None:
        """Looks at a prompt; None where its texts are not at hand.

        Args:
            chain: the prompt.
            texts: its texts, in order.
            models: the models whose tokens may be asked for.
        """
        total = chain.total_bytes
        if not 0 < total <= 4 * sum(map(len, texts)):  # a virtual fleet's prompts are hashes
            return None
        known = self._nearest(chain)
        ends = {min(known[model].total_bytes, total) if model in known else 0 for model in models}
        return Weighed(known, {end: _counts(texts, 1.0 - end / total) for end in ends})

    def estimate(
        self, chain: Chain, weighed: Weighed, models: Sequence[str], guess: Floats
    ) -> Floats:
        """Tokens of a prompt for each model.

        Args:
            chain: the prompt.
            weighed: the same as `weigh` has it.
            models: the models to estimate for.
            guess: tokens by another estimate; shape ``(len(models),)``, as the result.
        """
        total, found = chain.total_bytes, guess.copy()
        for at, model in enumerate(models):
            weights = self._models.get(model)
            if weights is None:
                continue
            own, known_bytes = weighed.part_of(model, total)
            tokens = float(weights.of_counts @ weighed.counts[known_bytes])
            if own is not None:
                tokens *= 1.0 + known_bytes / total * (own.tokens / own.expected - 1.0)
                tokens += own.tokens * (known_bytes / own.total_bytes)
            found[at] = max(tokens, _LEAST * total)
        return found

    def learn(self, chain: Chain, weighed: Weighed, model: str, tokens: int) -> None:
        """An answer reported the tokens of its prompt."""
        total = chain.total_bytes
        own, known_bytes = weighed.part_of(model, total)
        counts = weighed.counts.get(known_bytes)
        if tokens <= 0 or counts is None:
            return
        if len(self._models) >= MAX_MODELS and model not in self._models:
            self._models.clear()
        weights = self._models.setdefault(model, _Weights())
        images, before, expected = _MOST_OF_IMAGE * counts[-1], 0.0, 0.0
        if own is not None:
            before, expected = own.tokens, own.expected
            before, expected = (each * known_bytes / own.total_bytes for each in (before, expected))
        reported = min(max(float(tokens), _LEAST * total), _MOST * total + before + images + 100.0)
        expected = max(expected + float(weights.of_counts @ counts), _LEAST * total)
        if len(chain):
            end = chain.hashes[-1]
            known = self._known.setdefault(end, {})
            self._known.move_to_end(end)
            if len(known) < 8 or model in known:
                known[model] = _Known(reported, expected, total)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        if reported - before >= max(1.0, _LEAST * (total - known_bytes)):
            weights.learn(counts, reported - before)

    def _nearest(self, chain: Chain) -> Mapping[str, _Known]:
        """The longest part of a prompt whose tokens are known."""
        hashes, known = chain.hashes, self._known
        if not known:
            return {}
        for at in range(len(hashes) - 1, max(-1, len(hashes) - 1 - MAX_LOOK), -1):
            found = known.get(hashes[at])
            if found is not None:
                return dict(found)
        return {}
