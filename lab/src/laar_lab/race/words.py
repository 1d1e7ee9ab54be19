"""Texts of a given length in common English words, derived from a number."""

from __future__ import annotations

_TEXT = (
    "about after again all also and any are back because been before but came can come could "
    "day did different does down each end even find first for from get give good great hand "
    "has have help her here him his home house how into just know large last left like line "
    "little long look made make man many may more most must never"
)
_WORDS = tuple(_TEXT.split())
"""As many words as six bits can index."""


def text(number: int, chars: int) -> str:
    """Return `chars` characters of words chosen by the bits of a 64-bit number."""
    words = " ".join(_WORDS[number >> shift & 63] for shift in range(0, 60, 6)) + " "
    return (words * (chars // len(words) + 1))[:chars]
