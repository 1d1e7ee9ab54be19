"""Prompts without text: chained block ids instead of bytes.

A simulated prompt is an array of 64-bit ids, one per block of 16 tokens; an id identifies the whole
prompt up to and including its block, like the hash ids of a Mooncake trace. The ids are the keys of
the engine's prefix cache. The picker's prefix index gets those that are on its grid, and so finds
the same matches as with hashed text, at the same cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laar.prefix.beliefs import BYTES_PER_TOKEN, PrefixBeliefs
from laar.prefix.blocks import ENDS, Chain, blocks_in
from laar.prefix.match import Prompt as Asked
from laar.request import Api, Request

BLOCK_TOKENS = 16
"""vLLM's block size."""

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_PICKS = np.array(ENDS[1:], np.int64) // _BLOCK_BYTES - 1
_AFFINITY_BLOCKS = 256 // BLOCK_TOKENS  # affinity baselines hash the first 256 tokens
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # products wrap around at 64 bits
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt and its answer, in tokens.

    Args:
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer, at least 1.
        blocks: ids of the prompt's full blocks, followed by those of the answer.
    """

    prompt_tokens: int
    output_tokens: int
    blocks: array[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A prompt and the time at which it arrives.

    Args:
        at_s: when the client intends to send it, from the start of the run.
        prompt: the prompt.
        session: session that it belongs to; empty if the client names none.
        kind: class of the request, for tables by class; empty if there is only one.
        ttft_objective_s: TTFT objective of the client; None if it sets none.
        model: requested model name.
        tried: models that answered incorrectly before, as in ``x-laar-tried-models``.
    """

    at_s: float
    prompt: Prompt
    session: str = ""
    kind: str = ""
    ttft_objective_s: float | None = None
    model: str = "auto"
    tried: str = ""


def request_of(number: int, arrival: Arrival) -> Request:
    """Return the request as seen by the picker, at four characters per token."""
    prompt = arrival.prompt
    full = prompt.prompt_tokens // BLOCK_TOKENS
    known = min(_AFFINITY_BLOCKS, full, len(prompt.blocks))
    start = prompt.blocks[known - 1] if known else number
    return Request(
        id=str(number),
        api=Api.CHAT,
        model=arrival.model,
        spans=(f"{start:x}",),
        chars=prompt.prompt_tokens * BYTES_PER_TOKEN,
        body_bytes=prompt.prompt_tokens * BYTES_PER_TOKEN,
        max_tokens=prompt.output_tokens,
        stream=True,
        session=arrival.session,
        tried=arrival.tried,
        ttft_objective_s=arrival.ttft_objective_s,
    )


def spread(start: int, count: int) -> array[int]:
    """Return `count` successive ids, spread over 64 bits as hashes would be."""
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(start & _MASK)
    return array("Q", (numbers * _GOLDEN).tobytes())


class BlockPrefixes(PrefixBeliefs):
    """What caches are believed to contain, as in production, for prompts made of block ids.

    Attributes:
        upcoming: the prompt of the next request to decide on, since a request does not contain it.
        held: prompts of queued requests, by request id.
    """

    upcoming: Prompt | None = None

    @cached_property
    def held(self) -> dict[str, Prompt]:
        """Prompts of queued requests, by request id."""
        return {}

    def _read(
        self, prompt: Asked, weights: str, spans: Sequence[str]
    ) -> tuple[Chain, bytes | None]:
        """Return the ids on the index's grid; each also identifies everything before it."""
        assert isinstance(prompt, Request)
        hashes = array("Q")
        blocks_of = self.held.get(prompt.id, self.upcoming)
        if blocks_of is None:
            return Chain(hashes, 0), None
        total_bytes = blocks_of.prompt_tokens * BYTES_PER_TOKEN
        blocks = np.frombuffer(blocks_of.blocks, np.uint64)
        count = blocks_in(min(len(blocks) * _BLOCK_BYTES, total_bytes))
        hashes.frombytes(blocks[_PICKS[:count]].tobytes())
        return Chain(hashes, total_bytes), None
