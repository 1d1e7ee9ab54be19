"""Engines reduced to the simulator's caches, to compare them with what laar believes."""

from __future__ import annotations

from laar.core.decision import Completion
from laar_lab.sim.endpoint.tokenizer import TokenIds, block_hashes
from laar_lab.sim.engine.blocks import BlockPool


def serve(pool: BlockPool, ids: TokenIds, block_size: int) -> int:
    """Run a prompt; return how many of its tokens were cached."""
    hashes = block_hashes(ids, block_size)
    held, _ = pool.match(hashes, len(hashes))
    pool.share(hashes[:held])
    pool.take(len(hashes) - held)
    pool.publish(hashes[held:], hashes[held - 1] if held else None)
    pool.release(hashes, 0)
    return held * block_size


def answered(prompt_tokens: int, cached_tokens: int, latency_s: float = 0.5) -> Completion:
    """Return the completion of a successful request that reports cached tokens."""
    return Completion(
        status=200,
        cause="complete",
        latency_s=latency_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )
