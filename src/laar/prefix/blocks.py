"""Prompts as chains of block hashes, so that "same prefix" is a single integer comparison.

The text of the *effective* prompt (as the engine sees it, in order: system prompt, tools, role
markers, texts) is cut into blocks; the seed of a block's hash is the hash of everything before it.
Hence equal hashes at index ``i`` mean equal text up to and including block ``i``, and the longest
common prefix of two chains can be found by bisection.

Why the blocks grow: engines cache 16 to 128 tokens at a time, about 64 to 512 bytes, and a hash
call costs about 0.1 us for any block size; using 64-byte blocks throughout would cost 0.6 ms for
400 kB. So the first 4 KiB use blocks of 64 bytes (short chats, system prompts), then 256 up to 32
KiB, then 1 KiB: beyond the first 1 KiB the error is at most 1/16 of the prefix, and a 400 kB prompt
has about 530 blocks. A partial last block is ignored, as in engines.

The first seed is a digest of a secret and the salt (the tenant's ``cache_salt``, the adapter).
Without the secret no client can craft two prompts with the same chain, or guess prompts from shared
hashes. xxh3 is not a cryptographic hash: a collision causes a wrong estimate of time, never a wrong
answer.

Units are bytes of UTF-8. Tokens are unknown here: callers convert a `Chain.fraction` to tokens
with the prompt's token count, estimated or reported. `laar.prefix.tokens` handles token ids, for
engines that publish the blocks they hold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from xxhash import xxh3_64_intdigest

from laar.prefix.lengths import Weighed

MAX_HASHED_BYTES = 4 << 20
"""Text beyond this is treated as uncached. The longest contexts in use, 1M tokens, fit."""

RUN = 32
"""Blocks hashed and remembered together: 2 KiB at a prompt's start, 32 KiB beyond its first 32 KiB.
Fewer would take more look-ups; more would leave more blocks at the end to hash one by one."""

MAX_KNOWN = 16_384
"""Maximum number of runs remembered (8 MB); beyond that the table is cleared."""

ENDS: list[int] = [
    *range(0, 4 << 10, 64),
    *range(4 << 10, 32 << 10, 256),
    *range(32 << 10, MAX_HASHED_BYTES + 1, 1024),
]
"""The block boundaries; they depend only on the offset in the prompt. See above for the reasons."""
_SLICES = [slice(start, end) for start, end in pairwise(ENDS)]


def blocks_in(total_bytes: int) -> int:
    """Return the number of blocks in a prompt of this many bytes."""
    return bisect_right(ENDS, total_bytes) - 1


@dataclass(slots=True, eq=False)
class Chain:
    """One prompt as hashes, without its text.

    Args:
        hashes: one unsigned 64-bit integer per block; entry ``i`` covers blocks ``0..i``.
        total_bytes: length of the prompt in UTF-8, including the partial last block.
        weighed: how its length was estimated; None if there was no text to estimate it from.
        tokens: its length if it is one prompt of token ids; 0 if it must be estimated.
        counted: whether its request has been counted in the demand.
        continues: the last hash of the earlier prompt that it continues; 0 if none is known.
        own_from: number of leading blocks that were not that prompt's own, as others used them.
        held: number of leading blocks that a cache held when that was looked for.
    """

    hashes: array[int]
    total_bytes: int
    weighed: Weighed | None = None
    tokens: int = 0
    counted: bool = False
    continues: int = 0
    own_from: int = 0
    held: int = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def bytes_of(self, blocks: int) -> int:
        """Return the number of bytes in the first `blocks` blocks."""
        return min(ENDS[blocks], self.total_bytes)

    def fraction(self, blocks: int) -> float:
        """Return the share of the prompt, in [0, 1], that its first `blocks` blocks cover."""
        return self.bytes_of(blocks) / max(self.total_bytes, 1)


class PromptHasher:
    """Cuts and hashes prompts with one secret.

    Most prompts begin with text that was hashed before, such as a system prompt or earlier turns.
    So a known run of blocks takes a single hash over all its text, with its first block's seed.

    Args:
        key: the secret, of any length. Pickers that share state share the key.
    """

    __slots__ = ("_known", "_seed")

    def __init__(self, key: bytes) -> None:
        self._seed = int.from_bytes(blake2b(key, digest_size=8).digest())
        self._known: dict[int, array[int]] = {}

    def chain_of(self, text: bytes, salt: str = "", tokens: int = 0) -> Chain:
        """Hash a prompt.

        Args:
            text: the whole prompt, including role markers, in UTF-8.
            salt: everything else that decides whether an engine may share a block:
                ``cache_salt``, the adapter's name. Prompts with different salts share nothing.
            tokens: its length, if known.
        """
        hash_ = xxh3_64_intdigest(salt.encode("utf-8", "surrogatepass"), self._seed)
        count = bisect_right(ENDS, len(text)) - 1
        hashes, view, done = array("Q"), memoryview(text), 0
        while done + RUN <= count:
            run = xxh3_64_intdigest(view[ENDS[done] : ENDS[done + RUN]], hash_)
            known = self._known.get(run)
            if known is None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                places = _SLICES[done : done + RUN]
                seeded = [hash_ := xxh3_64_intdigest(text[place], hash_) for place in places]
                known = self._known[run] = array("Q", seeded)
            hashes += known
            hash_, done = known[-1], done + RUN
        for place in _SLICES[done:count]:
            hash_ = xxh3_64_intdigest(text[place], hash_)
            hashes.append(hash_)
        return Chain(hashes, len(text), tokens=tokens)
