"""Measure the simulated engine: requests per minute on one core, and one scheduling decision.

The load is GORGO's: 3 endpoints, conversations whose prompts average 7k tokens and share most of
them with the previous turn, 128 output tokens. Times are CPU time, which excludes other work on the
machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from laar_lab.sim.engine import Job, build_engine, drive, load_profile

REPLICAS = 3
BLOCK = 16
TARGET_PER_MINUTE = 100_000


def conversations(rng: random.Random, requests: int, rate: float) -> Iterator[Job]:
    """Yield jobs for one endpoint at `rate` per second, as turns of 40 conversations.

    A conversation longer than 12.5k tokens is replaced by a new one.
    """
    fresh = count()
    chats: list[list[int]] = [[] for _ in range(40)]
    now = 0.0
    for index in range(requests):
        now += rng.expovariate(rate)
        slot = rng.randrange(len(chats))
        if len(chats[slot]) * BLOCK > 12_500:
            chats[slot] = []
        chat = chats[slot]
        more = max(1, round(rng.lognormvariate(6.2, 0.9))) // BLOCK + (0 if chat else 150)
        chat.extend(next(fresh) for _ in range(more + 128 // BLOCK))
        prompt = len(chat) * BLOCK - 128
        yield Job(
            id=str(index),
            arrival_s=now,
            prompt_tokens=prompt,
            output_tokens=128,
            blocks=tuple(chat),
        )


def throughput(name: str, rate: float, *, merge: bool, requests: int = 2000) -> None:
    profile = load_profile(name)
    traces = [list(conversations(random.Random(s), requests, rate)) for s in range(REPLICAS)]
    began = time.process_time()
    results = [drive(build_engine(profile), trace, merge=merge) for trace in traces]
    spent = time.process_time() - began
    done = [timing for result in results for timing in result.values()]
    prompts = sum(job.prompt_tokens for trace in traces for job in trace)
    cached = sum(timing.cached_tokens for timing in done)
    ttft = sorted(timing.ttft_s for timing in done)
    print(
        f"{name:<22} {rate:4.1f} req/s each, merge {'on ' if merge else 'off'}: "
        f"{len(done) / spent * 60:>9,.0f} requests a minute (target {TARGET_PER_MINUTE:,}), "
        f"prompt {prompts / len(done):,.0f}, cached {cached / prompts:.0%}, "
        f"p50 TTFT {ttft[len(ttft) // 2] * 1e3:.0f} ms"
    )


def decision(waiting: int) -> None:
    """Print how long an iteration of Medha's scheduler takes with many waiting requests."""
    profile = load_profile("medha-8b-a100")
    profile = replace(profile, settings=replace(profile.settings, max_num_seqs=64))
    engine = build_engine(profile)
    rng = random.Random(0)
    for index in range(waiting):
        tokens = rng.choice([1000, 4000, 8000, 200_000])
        engine.submit(Job(id=str(index), arrival_s=0.0, prompt_tokens=tokens, output_tokens=400))
    now, spent = 0.0, []
    for _ in range(200):
        began = time.process_time()
        step = engine.step(now)
        spent.append(time.process_time() - began)
        now += step.duration_s if step else 0.0
    spent.sort()
    print(
        f"slack scheduler, {waiting:,} waiting: iteration p50 {spent[100] * 1e3:.2f} ms, "
        f"p99 {spent[197] * 1e3:.2f} ms (target p99 < 1 ms)"
    )


def main() -> None:
    for rate in (0.8, 1.5, 3.0):
        throughput("gorgo-main", rate, merge=True)
    throughput("gorgo-main", 1.5, merge=False)
    throughput("qwen3.5-35b-a3b-l40s", 1.5, merge=True)
    decision(1000)


if __name__ == "__main__":
    main()
