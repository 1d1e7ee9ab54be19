"""Run a tiny Qwen3-Next with random weights in a real vLLM, and record what it finds cached.

Run `python vllm_recurrent.py KIND FILE SEED PROMPTS AT_ONCE` in a Python that has vLLM; KIND is
`documents` or `agents`. It keeps AT_ONCE prompts in the engine, and writes to FILE the tokens per
block, the prompts' ids, and in their order what happened: `(number, None)` for a prompt that was
sent, `(number, found cached)` for one that was answered, `(None, batch)` for KV events.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from vllm_driver import QUIET

MODEL = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def documents(rng: random.Random, prompts: int) -> list[list[int]]:
    """Return prompts with one of a few documents of 3,000 tokens, and a new question of 600."""
    known = [_tokens(rng, 3_000) for _ in range(prompts // 10)]
    return [rng.choice(known) + _tokens(rng, 600) for _ in range(prompts)]


def agents(rng: random.Random, prompts: int) -> list[list[int]]:
    """Return the turns of conversations that grow by 40 to 900 tokens."""
    talks, turns = [_tokens(rng, 2_000) for _ in range(8)], []
    for _ in range(prompts):
        at = rng.randrange(len(talks))
        grown = talks[at] + _tokens(rng, rng.randint(40, 900))
        talks[at] = grown if len(grown) < 8_000 else _tokens(rng, 2_000)
        turns.append(talks[at])
    return turns


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 1000) for _ in range(count)]


def main(prompts: list[list[int]], file: Path, at_once: int) -> None:
    """Send the prompts in order, `at_once` at a time."""
    os.environ.update(QUIET)
    import msgspec
    from vllm import EngineArgs, SamplingParams
    from vllm.config import KVEventsConfig
    from vllm.v1.engine.llm_engine import LLMEngine

    with tempfile.TemporaryDirectory() as work:
        Path(work, "config.json").write_text(json.dumps(MODEL))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=work,
                skip_tokenizer_init=True,
                load_format="dummy",
                enforce_eager=True,
                max_model_len=8192,
                max_num_batched_tokens=2048,
                enable_prefix_caching=True,
                kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            )
        )
    scheduler: Any = engine.engine_core.engine_core.scheduler
    seen: list[tuple[int | None, Any]] = []
    scheduler.kv_event_publisher.publish = lambda batch: seen.append(
        (None, msgspec.msgpack.encode(msgspec.to_builtins(batch)))
    )
    once = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)
    sent = answered = 0
    while answered < len(prompts):
        while sent < min(len(prompts), answered + at_once):
            engine.add_request(str(sent), {"prompt_token_ids": prompts[sent]}, once)
            seen.append((sent, None))
            sent += 1
        for answer in engine.step():
            seen.append((int(answer.request_id.partition("-")[0]), answer.num_cached_tokens or 0))
            answered += answer.finished
    block = engine.vllm_config.cache_config.block_size
    file.write_bytes(msgspec.msgpack.encode((block, prompts, seen)))
    os._exit(0)  # without waiting for vLLM's threads


if __name__ == "__main__":
    draw = {"documents": documents, "agents": agents}[sys.argv[1]]
    asked = draw(random.Random(int(sys.argv[3])), int(sys.argv[4]))
    main(asked, Path(sys.argv[2]), int(sys.argv[5]))
