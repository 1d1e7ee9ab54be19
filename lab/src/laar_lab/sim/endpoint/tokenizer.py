"""Token ids and block hashes of the simulated fleet's tokenizer.

`laar_lab.tokens` counts the tokens of a text: one per six ASCII characters (across the whole text),
one per other character. This module gives them ids. An ASCII token is placed where its last
character is, an incomplete one at the very end. Appending to a text therefore changes at most its
last token, as with real tokenizers. Ids are 31-bit hashes of the characters; with about 17 bits, as
real ids have, different texts would share blocks by accident.

As in vLLM, each block is hashed together with all before it, but with seeded xxh3 instead of
SHA-256: `h[i] = xxh3_64(ids of block i as little-endian uint32, seed=h[i-1])`. The seed of the
first block is `ROOT`, or a hash of the request's ``cache_salt``. A last, partial block has no hash.
A text and the same text sent as ids share blocks.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from laar_lab.tokens import ASCII_PER_TOKEN

TokenIds = NDArray[np.uint32]

VOCABULARY = 1 << 31
"""Exclusive upper limit of ids."""

ROOT = 0x6C616172
"""Seed of the first block's hash."""

_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that all six characters reach the product's top bits
_TOP_BITS = np.uint64(33)


def token_ids(text: str) -> TokenIds:
    """Return the text's token ids in order, as many as `count_tokens` counts."""
    if text.isascii():
        return _ascii_ids(text.encode())
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    is_ascii = points < 128
    ascii_at = np.flatnonzero(is_ascii)
    ids = points.astype(np.uint32)  # a character that is not ASCII is its own id
    ends = ascii_at[ASCII_PER_TOKEN - 1 :: ASCII_PER_TOKEN]
    ascii_ids = _ascii_ids(points[ascii_at].astype(np.uint8).tobytes())
    ids[ends] = ascii_ids[: len(ends)]
    keep = ~is_ascii
    keep[ends] = True
    return np.concatenate([ids[keep], ascii_ids[len(ends) :]])


def block_hashes(ids: TokenIds, block_size: int, *, salt: str = "") -> list[int]:
    """Return chained 64-bit hashes of the full blocks, first to last."""
    chained = xxhash.xxh3_64_intdigest(salt.encode(), seed=ROOT) if salt else ROOT
    raw = memoryview(ids.astype("<u4", copy=False).tobytes())
    stride = 4 * block_size
    digest = xxhash.xxh3_64_intdigest
    hashes = []
    for start in range(0, len(raw) - stride + 1, stride):
        chained = digest(raw[start : start + stride], seed=chained)
        hashes.append(chained)
    return hashes


def _ascii_ids(text: bytes) -> TokenIds:
    count = -(-len(text) // ASCII_PER_TOKEN)
    grouped = np.zeros((count, 8), dtype=np.uint8)
    padded = text.ljust(count * ASCII_PER_TOKEN, b"\0")
    grouped[:, :ASCII_PER_TOKEN] = np.frombuffer(padded, np.uint8).reshape(count, ASCII_PER_TOKEN)
    return ((grouped.view("<u8").ravel() * _MIX) >> _TOP_BITS).astype(np.uint32)
