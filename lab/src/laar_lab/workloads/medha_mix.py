"""Medha's mixed load: conversations, and a few prompts as long as a repository (section 6.1).

Short requests resemble the paper's ShareGPT4 trace: lognormal prompts with median 1,730 and 90th
percentile 5,696 tokens (as published for that trace), up to 8K, and answers with median 415 and
90th percentile 834. Long ones resemble its MEDHA-SWE trace: prompts with median 393K and 90th
percentile 839K between 128K and 1M, answers with median 518 and 90th percentile 808. Arrivals are
Poisson.

The traces themselves are not public. Values outside the limits are redrawn, which changes the
median and the 90th percentile to 384K and 726K for long prompts, and to 1,625 and 4,650 for short
ones. On average, a lone long prompt takes 26 s on 16 A100s, so the engine can sustain about 0.75
requests per second with 5 % long ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from laar_lab.sim.engine import Job

LONG_FROM_TOKENS = 128_000
_LONGEST_TOKENS = 1_000_000
_SHORTEST_TOKENS = 16
_LONGEST_SHORT_TOKENS = 8192
_LONGEST_ANSWER_TOKENS = 2048
_Z90 = 1.2815515655446004
"""90th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parameters of a load.

    Args:
        rate: requests per second.
        duration_s: duration of the load in seconds.
        long_share: share of long requests, 0 to 1.
    """

    rate: float
    duration_s: float
    long_share: float = 0.05


def jobs(mix: Mix, seed: int) -> Iterator[Job]:
    """Yield the requests in order of arrival; ids of long ones begin with `long`.

    With the same seed, loads of different rates have the same prompts, only closer together.
    """
    times, kinds = random.Random(f"{seed}/times"), random.Random(f"{seed}/kinds")
    sizes = random.Random(f"{seed}/sizes")
    now, number = 0.0, 0
    while True:
        now += times.expovariate(mix.rate)
        if now >= mix.duration_s:
            return
        number += 1
        is_long = kinds.random() < mix.long_share
        if is_long:
            prompt = _between(sizes, 393_000, 839_000, LONG_FROM_TOKENS, _LONGEST_TOKENS)
            answer = _between(sizes, 518, 808, 1, _LONGEST_ANSWER_TOKENS)
        else:
            prompt = _between(sizes, 1730, 5696, _SHORTEST_TOKENS, _LONGEST_SHORT_TOKENS)
            answer = _between(sizes, 415, 834, 1, _LONGEST_ANSWER_TOKENS)
        yield Job(
            id=f"{'long' if is_long else 'short'}-{number}",
            arrival_s=now,
            prompt_tokens=int(prompt),
            output_tokens=int(answer),
        )


def _between(rng: random.Random, median: float, p90: float, low: float, high: float) -> float:
    """Return a lognormal draw, redrawn until it is within the limits."""
    while True:
        value = rng.lognormvariate(math.log(median), math.log(p90 / median) / _Z90)
        if low <= value <= high:
            return value
