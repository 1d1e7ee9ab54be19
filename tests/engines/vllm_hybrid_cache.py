"""Run vLLM's own cache manager for a model whose first layers have a sliding window.

Run `python vllm_hybrid_cache.py BLOCKS FILE` in a Python that has vLLM. Conversations pass through
the manager without a model. For each prompt it writes to FILE the token ids, the number found
cached, and the KV events that followed. No engine on a CPU has such a cache.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

BLOCK, WINDOW = 16, 64
TALKS, PROMPTS = 12, 300
STEP = 256


def main(blocks: int, file: Path) -> None:
    """Run the conversations in a cache of `blocks` blocks."""
    import msgspec
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request

    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK, sha256_cbor)
    layer = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [
        KVCacheGroupSpec(["local-1"], SlidingWindowSpec(**layer, sliding_window=WINDOW)),
        KVCacheGroupSpec(["local-2"], SlidingWindowSpec(**layer, sliding_window=WINDOW)),
        KVCacheGroupSpec(["global"], FullAttentionSpec(**layer)),
    ]
    cache = KVCacheManager(
        KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=8192,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_kv_cache_events=True,
    )
    rng, served = random.Random(1), []
    talks = [_tokens(rng, 40, 400) for _ in range(TALKS)]
    for number in range(PROMPTS):
        at = rng.randrange(TALKS)
        talks[at] = _tokens(rng, 40, 400) if len(talks[at]) > 1500 else talks[at]
        talks[at] += _tokens(rng, 10, 80)
        request = Request(
            request_id=str(number),
            prompt_token_ids=list(talks[at]),
            sampling_params=SamplingParams(max_tokens=4),
            pooling_params=None,
            block_hasher=hasher,
        )
        held, found, _ = cache.get_computed_blocks(request)
        cached = {"num_new_computed_tokens": found, "new_computed_blocks": held}
        done = found
        while done < len(talks[at]):
            step = min(STEP, len(talks[at]) - done)
            assert cache.allocate_slots(request, step, **cached) is not None
            cached, done = {}, done + step
            request.num_computed_tokens = done
        events = cache.take_events()
        cache.free(request)
        batch = msgspec.msgpack.encode([time.time(), [*events, *cache.take_events()], 0])
        served.append((talks[at], found, batch))
    file.write_bytes(msgspec.msgpack.encode(served))


def _tokens(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(1000) for _ in range(rng.randint(least, most))]


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
