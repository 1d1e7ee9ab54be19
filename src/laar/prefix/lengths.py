"""Prompt lengths in tokens, estimated from the conversation and the characters of the text.

A fixed ratio of characters to tokens is off by a factor of two for a mix of prose, JSON and code.
But tokenizers have habits in common: most words are one token, a number is a token per one to three
digits, a symbol is about half a token, a line starts a new token. So a text's length is computed as
a weighted count of its characters and of the points where one character class follows another. On
prose, code, markup, tables and texts in twenty languages, the weights below are within 15 % of four
tokenizers for four out of five texts, but four bytes per token only for two.

The weights of each model are learned from the lengths that its engines report (recursive least
squares); after thirty reports they are within 15 % for nine out of ten texts. Images and the tokens
that a chat template adds to a message have weights like the others.

Once an answer in a conversation has reported its tokens, they are used for the known part; the
rest is estimated, and corrected by the error on the known part.

Some engines count only the tokens that they did not find in their cache. Such a count of a prompt
is less than that of its own beginning, which no length is. From then on the model's counts are
lower bounds: what was learned from them is forgotten, and those below the estimate are ignored.

Until a model's first report, the given guess is used. A report is trusted only within the range of
tokenizers (`_LEAST`, `_MOST`). Memory is bounded by `MAX_KNOWN` and `MAX_MODELS`. Lengths are in
bytes of UTF-8, as in `laar.prefix.blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from laar.latest import Latest

if TYPE_CHECKING:
    from laar.prefix.blocks import Chain

MESSAGE = "\x1e"
"""Prefix of a message's role among a prompt's texts."""
DIGEST = "\x1d"
"""Prefix of the digest of a non-text part, such as an image."""
FILLER = "\x1f"
"""Pads a digest to the length of a text with as many tokens; adds no tokens itself."""
_MESSAGE, _DIGEST = ord(MESSAGE), ord(DIGEST)

MAX_KNOWN = 20_000
"""Maximum number of prompts with known tokens (about 6 MB); the oldest are dropped first."""

MAX_MODELS = 256
"""Maximum number of models with learned weights (6 kB each); beyond that the table is cleared."""

MAX_LOOK = 256
"""Maximum number of blocks looked up from a prompt's end: a turn of 64 KiB or more."""

_WINDOWS, _WINDOW_BYTES = 12, 128
"""Number and length of samples from a long text: 2 % error, and 20 us at any length."""

_LEAST, _MOST = 0.05, 5.0  # tokens per byte
_MOST_OF_IMAGE = 20_000.0  # tokens
_MOST_SPREADS = 3.0  # cap on a report's error, in standard deviations
_SHORT, _BELOW = 0.7, 0.9  # shares of a beginning's length, and of an estimate
_LARGEST = 1e6  # weight, or its variance
_RENEWAL = 0.005  # share of the initial uncertainty added with each report, as traffic changes

Floats = npt.NDArray[np.float64]

# Character classes: tokens per character, and per start of a run of its class.
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
    """Return the matrix from counts of class pairs to counts of classes and runs."""
    same = np.eye(_COUNT)
    after = np.tile(same, _COUNT)  # the second class of each pair
    matrix = np.pad(np.vstack([after, after * (1.0 - same.ravel())]), ((0, 3), (0, 3)))
    matrix[-3:, -3:] = np.eye(3)
    return matrix


_FEATURES = _features()
_FIRST = np.array(
    [weight for _, weight, _ in _WEIGHTS]
    + [begun for _, _, begun in _WEIGHTS]
    + [_TOKENS_OF_PROMPT, _TOKENS_OF_MESSAGE, _TOKENS_OF_IMAGE]
)
# The weights may be off by a third together, and each by a half on its own.
_UNSURE = np.outer(0.3 * _FIRST, 0.3 * _FIRST) + np.diag((0.5 * _FIRST + 0.02) ** 2)
_SCATTER = 0.1  # relative scatter of reports for the same text


def _counts(text: bytes, *, begins: bool) -> Floats:
    """Count pairs of adjacent character classes, then prompts, messages and images.

    Args:
        text: the end of a prompt, or all of it.
        begins: whether `text` is the complete prompt.
    """
    size = len(text)
    sample = text
    if size > _WINDOWS * _WINDOW_BYTES:
        starts = range(0, size - _WINDOW_BYTES, size // _WINDOWS)
        ends = range(_WINDOW_BYTES, size, size // _WINDOWS)
        sample = b"".join(map(text.__getitem__, map(slice, starts, ends)))
    classes = np.frombuffer(sample.translate(_CLASS_OF), np.uint8)
    found = np.zeros(_COUNT * _COUNT + 3)
    if len(classes) > 1:
        pairs = np.bincount(classes[:-1] * np.uint8(_COUNT) + classes[1:], minlength=_COUNT**2)
        found[:-3] = pairs * (size / len(sample))
    signs = np.frombuffer(text, np.uint8)  # bytes.count takes 10 times as long
    images = np.count_nonzero(signs == _DIGEST) if _DIGEST in text else 0
    found[-3:] = begins, np.count_nonzero(signs == _MESSAGE), images
    return found


class _Weights:
    """The weights of one model."""

    def __init__(self) -> None:
        self._weights, self._unsure = _FIRST.copy(), _UNSURE.copy()
        self.of_counts: Floats = self._weights @ _FEATURES

    def learn(self, counts: Floats, tokens: float) -> None:
        """Learn from a prompt's character counts and its number of tokens."""
        given = _FEATURES @ counts / tokens  # normalized, so that all prompts have the same weight
        swing = self._unsure @ given
        spread = _SCATTER**2 + float(given @ swing)
        most = _MOST_SPREADS * math.sqrt(spread)
        off = min(most, max(-most, 1.0 - float(self._weights @ given)))
        self._weights += swing * (off / spread)
        self._unsure -= np.outer(swing, swing) / spread
        self._unsure += _RENEWAL * (_UNSURE - self._unsure)
        self.of_counts = self._weights @ _FEATURES

    def state(self) -> list[list[float]]:
        """Return the weights and, row by row, their covariance."""
        return [self._weights.tolist(), *self._unsure.tolist()]

    def restore(self, rows: object) -> bool:
        """Restore a result of `state`; if it is invalid, change nothing and return False."""
        try:
            own: Floats = np.array(rows, np.float64)
        except (TypeError, ValueError, OverflowError):
            return False
        size = len(_FIRST)
        if own.shape != (size + 1, size) or not (np.abs(own) < _LARGEST).all():
            return False
        if np.linalg.eigvalsh(own[1:]).min() < -1e-9:  # not a covariance
            return False
        self._weights, self._unsure = own[0], own[1:]
        self.of_counts = self._weights @ _FEATURES
        return True


class Known(NamedTuple):
    """A prompt whose tokens were reported: its length, and the tokens that were expected."""

    tokens: Annotated[float, Meta(gt=0, lt=1e9)]
    expected: Annotated[float, Meta(gt=0, lt=1e9)]
    total_bytes: Annotated[int, Meta(gt=0)]


class Weighed(NamedTuple):
    """The basis of a length estimate, without the text.

    Args:
        known: its longest known part, by model.
        counts: character counts of the rest, by the known part's length in bytes.
    """

    known: Mapping[str, Known]
    counts: Mapping[int, Floats]


class PromptLengths:
    """Estimates and learns prompt lengths in tokens."""

    def __init__(self) -> None:
        self.known: Latest[int, dict[str, Known]] = Latest(MAX_KNOWN)
        """The reported lengths of prompts, by hash and model."""
        self._models: dict[str, _Weights] = {}
        self.partial: set[str] = set()
        """The models whose counts leave out what was cached."""

    def estimate(self, chain: Chain, text: bytes, models: Sequence[str], guess: Floats) -> Floats:
        """Return a prompt's tokens for each model, and store in the chain what `learn` needs.

        Args:
            chain: the prompt.
            text: its text.
            models: the models to estimate for.
            guess: tokens according to another estimate; shape ``(len(models),)``, like the result.
        """
        total = len(text)
        if not total:
            return guess
        known, found = self._nearest(chain) if self.known else {}, guess.copy()
        counts: dict[int, Floats] = {}
        chain.weighed = Weighed(known, counts)
        for at, model in enumerate(models):
            own = known.get(model)
            known_bytes = 0 if own is None else min(own.total_bytes, total)
            rest = counts.get(known_bytes)
            if rest is None:
                rest = counts[known_bytes] = _counts(text[known_bytes:], begins=not known_bytes)
            weights = self._models.get(model)
            if weights is None:
                continue
            tokens = float(weights.of_counts @ rest)
            if own is not None:
                tokens *= 1.0 + known_bytes / total * (own.tokens / own.expected - 1.0)
                tokens += own.tokens * (known_bytes / own.total_bytes)
            found[at] = max(tokens, _LEAST * total)
        return found

    def learn(self, chain: Chain, model: str, tokens: int) -> None:
        """Learn from an answer that reported the tokens of its prompt."""
        weighed, total = chain.weighed, chain.total_bytes
        if tokens <= 0 or weighed is None:
            return
        own = weighed.known.get(model)
        known_bytes = 0 if own is None else min(own.total_bytes, total)
        counts = weighed.counts.get(known_bytes)
        if counts is None:
            return
        if len(self._models) >= MAX_MODELS and model not in self._models:
            self._models.clear()
            self.partial.clear()
        if own is not None and known_bytes == own.total_bytes and tokens < _SHORT * own.tokens:
            if model not in self.partial:
                self.partial.add(model)
                self._models.pop(model, None)
                self.known.clear()
            return
        weights = self._models.setdefault(model, _Weights())
        images, before, expected = _MOST_OF_IMAGE * counts[-1], 0.0, 0.0
        if own is not None:
            before, expected = (
                known * known_bytes / own.total_bytes for known in (own.tokens, own.expected)
            )
        of_rest = float(weights.of_counts @ counts)
        if model in self.partial and tokens < _BELOW * (before + of_rest):
            return
        reported = min(max(float(tokens), _LEAST * total), _MOST * total + before + images + 100.0)
        expected = max(expected + of_rest, _LEAST * total)
        if len(chain):
            end = chain.hashes[-1]
            known = self.known.get(end, {})
            if len(known) < 8 or model in known:
                self.known[end] = {**known, model: Known(reported, expected, total)}
        if reported - before >= max(1.0, _LEAST * (total - known_bytes)):
            weights.learn(counts, reported - before)

    def state(self) -> dict[str, list[list[float]]]:
        """Return the weights of models, as plain JSON types."""
        return {name: weights.state() for name, weights in self._models.items()}

    def restore(self, state: object) -> None:
        """Restore a result of `state`; skip invalid parts."""
        for name, rows in islice(state.items(), MAX_MODELS) if isinstance(state, dict) else ():
            weights = _Weights()
            if weights.restore(rows):
                self._models[name] = weights

    def _nearest(self, chain: Chain) -> Mapping[str, Known]:
        """Return the longest part of a prompt whose tokens are known."""
        for hash_ in chain.hashes[: -1 - MAX_LOOK : -1]:
            if found := self.known.get(hash_):
                return dict(found)
        return {}
