"""The simulated fleet's tokenizer: a convention, so that the lab needs no real one.

Six ASCII characters make one token, rounded up; every other character is one token. A 64K-token
look-up over UUIDs is thus about 400 KB of text, the size for which the product's targets are
stated. Real tokenizers differ by model. The picker never assumes this one, but learns
lengths from the reported usage (`laar.prefix.lengths`).
"""

from __future__ import annotations

ASCII_PER_TOKEN = 6


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text in the simulated fleet's convention."""
    ascii_chars = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_chars // ASCII_PER_TOKEN) + len(text) - ascii_chars
