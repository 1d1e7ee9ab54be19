"""The stems of words that a text may hold, found in one pass: four signs at a time, by their hash.

To look for 27 stems one after another takes a third of the time of a prompt without documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GRAM = 4
_SLOT_BITS = 12
_ODD = np.uint32(0x9E3779B1)
_SHIFT = np.uint32(32 - _SLOT_BITS)
_LETTERS = np.dtype("<u4")

SHORT = 1000
"""Signs up to which a text is as well searched for each."""


class Stems:
    """A fixed set of stems.

    Args:
        stems: stems of small letters, four letters at least.
    """

    def __init__(self, stems: Sequence[str]) -> None:
        self._all = tuple(stems)
        self._ascii = tuple(stem for stem in stems if stem.isascii())
        self._grams = [int.from_bytes(stem[:_GRAM].encode(), "little") for stem in self._ascii]
        self._slots = np.zeros(1 << _SLOT_BITS, np.bool_)
        self._slots[(np.array(self._grams, np.uint32) * _ODD) >> _SHIFT] = True

    def maybe_in(self, small: str) -> Sequence[str]:
        """Finds all stems in a text of small letters, in their order, and maybe others."""
        if not small.isascii():
            return self._all
        if len(small) <= SHORT:
            return self._ascii
        padded = small.encode() + bytes(_GRAM - 1)
        grams = np.ndarray((len(small),), _LETTERS, padded, 0, (1,))  # one begins at each sign
        found = set(grams[self._slots.take((grams * _ODD) >> _SHIFT)].tolist())
        return [stem for gram, stem in zip(self._grams, self._ascii, strict=True) if gram in found]

    def are_in(self, small: str) -> bool:
        """Whether one of them is in a text of small letters."""
        return any(stem in small for stem in self.maybe_in(small))
