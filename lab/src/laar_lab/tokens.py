"""The simulated fleet's tokenizer: a convention, so that the lab needs no real one.

Six ASCII characters make one token, rounding up; every other character is one token of its own.
With it a 64K-token look-up over UUIDs is about 400 KB of text, the size the product's targets are
stated for. Real tokenizers differ by model; the picker never assumes this one and learns
characters per token from the usage that answers report (`laar.accuracy.tokens`).
"""

from __future__ import annotations

ASCII_PER_TOKEN = 6


def count_tokens(text: str) -> int:
    """Tokens of a text under the simulated fleet's convention."""
    ascii_chars = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_chars // ASCII_PER_TOKEN) + len(text) - ascii_chars
