"""Run a tiny random model on a real vLLM, in its own process, and print one JSON object.

Run `python vllm_driver.py EXPERIMENT WORKDIR` in a Python that has vLLM and laar-vllm. All runs in
one process, so that it can time arrivals and read the scheduler's state.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

QUIET = {
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",  # two threads would compete with other processes
    "HF_HUB_OFFLINE": "1",
    # Otherwise vLLM compiles the kernel of log-probabilities for minutes.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables for a vLLM on a small machine."""


MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONG, SHORT = 7000, 30


class Driver:
    """An engine, and a clock for its requests."""

    def __init__(self, work: Path, **options: object) -> None:
        os.environ.update(QUIET)
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        (work / "config.json").write_text(json.dumps(MODEL))
        # For the toy model on one slow core, where a step of 256 tokens takes about 10 ms.
        constants = {"overhead_s": 0.002, "target_s": 0.015}
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(work),
                skip_tokenizer_init=True,
                load_format="dummy",
                enforce_eager=True,
                max_model_len=8192,
                seed=0,
                scheduler_cls="laar_vllm.SlackScheduler",
                additional_config={"laar": constants},
                **options,
            )
        )
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        self.rng = random.Random(1)
        self.count = 0
        self.ttft_s: dict[str, float] = {}
        self.tokens: dict[str, list[int]] = {}
        self.preemptions = 0
        self._count_preemptions()

    def _count_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.preemptions += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    def prompt(self, tokens: int) -> list[int]:
        """Return a prompt that shares no block with another."""
        return [self.rng.randrange(3, 1024) for _ in range(tokens)]

    def run(
        self, arrivals: list[tuple[float, list[int]]], output: int, salt: str | None = None
    ) -> list[str]:
        """Send prompts at their times, and step until all are answered; return their ids."""
        from vllm import SamplingParams

        start = time.time()
        waiting = sorted(enumerate(arrivals), key=lambda pair: pair[1][0])
        ids = [f"{self.count + i}" for i in range(len(arrivals))]
        self.count += len(arrivals)
        due = {name: start + at for name, (at, _) in zip(ids, arrivals, strict=True)}
        while waiting or self.engine.has_unfinished_requests():
            while waiting and start + waiting[0][1][0] <= time.time():
                index, (_, prompt) = waiting.pop(0)
                body: dict[str, object] = {"prompt_token_ids": prompt}
                if salt:
                    body["cache_salt"] = salt
                self.engine.add_request(
                    ids[index],
                    body,
                    SamplingParams(
                        max_tokens=output, temperature=0.0, ignore_eos=True, detokenize=False
                    ),
                    arrival_time=due[ids[index]],
                )
            for answer in self.engine.step():
                tokens = answer.outputs[0].token_ids
                if tokens and answer.request_id not in self.ttft_s:
                    self.ttft_s[answer.request_id] = time.time() - due[answer.request_id]
                self.tokens[answer.request_id] = list(tokens)
        return ids


def convoy(work: Path) -> dict[str, object]:
    """Send three long prompts, then six short ones 50 ms apart, by each scheduler in turn.

    One engine runs both schedulers, since other work on the machine affects the figures more than
    the scheduler does. The slack scheduler without its plan is vLLM's own.
    """
    driver = Driver(work, max_num_batched_tokens=256)
    driver.run([(0.0, driver.prompt(LONG))], 2)  # warms the engine up
    scheduler, plan_step = driver.scheduler, driver.scheduler._plan_step
    planning: list[float] = []

    def timed() -> object:
        begin = time.perf_counter()
        held = plan_step()
        planning.append(time.perf_counter() - begin)
        return held

    ttft: dict[str, list[float]] = {}
    for name in ("stock", "slack") * 4:
        scheduler._plan_step = timed if name == "slack" else list
        scheduler._chunks = {}
        arrivals = [(0.0, driver.prompt(LONG)) for _ in range(3)]
        arrivals += [(0.12 + 0.05 * i, driver.prompt(SHORT)) for i in range(6)]
        ids = driver.run(arrivals, 4)
        ttft.setdefault(f"{name}_long", []).extend(driver.ttft_s[one] for one in ids[:3])
        ttft.setdefault(f"{name}_short", []).extend(driver.ttft_s[one] for one in ids[3:])
    figures: dict[str, object] = {}
    for name, seconds in ttft.items():
        figures[f"{name}_median_s"] = statistics.median(seconds)
        figures[f"{name}_max_s"] = max(seconds)
    return figures | {"planning_median_us": statistics.median(planning) * 1e6}


def pressure(work: Path) -> dict[str, object]:
    """Send 26 prompts of 7,000 tokens, of which one fits at a time (80 blocks of 128)."""
    driver = Driver(work, max_num_batched_tokens=2048, num_gpu_blocks_override=80, block_size=128)
    ids = driver.run([(0.0, driver.prompt(LONG)) for _ in range(26)], 4)
    return {
        "finished": sum(len(driver.tokens[name]) == 4 for name in ids),
        "preemptions": driver.preemptions,
    }


def identity(work: Path) -> dict[str, object]:
    """Send 17 greedy prompts one by one, then together without and with the prefix cache."""
    driver = Driver(work, max_num_batched_tokens=512)
    prompts = [driver.prompt(tokens) for tokens in range(40, 4041, 250)]
    alone = [driver.run([(0.0, prompt)], 24)[0] for prompt in prompts]
    same = {}
    for name, salt in (("fresh", "other"), ("cached", None)):
        together = driver.run([(0.0, prompt) for prompt in prompts], 24, salt)
        same[name] = sum(
            driver.tokens[a] == driver.tokens[b] for a, b in zip(alone, together, strict=True)
        )
    return {
        "prompts": len(prompts),
        "distinct": len({str(driver.tokens[a]) for a in alone}),
        **same,
    }


if __name__ == "__main__":
    experiment = {"convoy": convoy, "pressure": pressure, "identity": identity}[sys.argv[1]]
    result = experiment(Path(sys.argv[2]))
    sys.stdout.write("\nRESULT " + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without waiting for vLLM's threads
