"""Short chats with a few very long prompts among them: Medha's convoy (medha.md section 7).

Short prompts are like ShareGPT's, at most 8K tokens; long ones are spread evenly in the logarithm
from 128K to 1M. Nothing is shared between prompts.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from laar.sim.fleet import Arrival, Prompt

__all__ = ["LONG", "SHORT", "MixedLengths", "mixed_lengths"]

SHORT, LONG = "short", "long"
"""Kinds of arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLengths:
    """The mix; tokens.

    Args:
        requests_per_s: Poisson.
        long_share: of the requests.
        short_log: mean and standard deviation of the logarithm of a short prompt's length.
        max_short_tokens: what it is cut to.
        long_tokens: shortest and longest long prompt.
        output_log: as `short_log`, for answers.
        max_output_tokens: what an answer is cut to.
    """

    requests_per_s: float = 0.75
    long_share: float = 0.05
    short_log: tuple[float, float] = (6.8, 1.1)
    max_short_tokens: int = 8192
    long_tokens: tuple[int, int] = (131_072, 1_000_000)
    output_log: tuple[float, float] = (5.2, 0.8)
    max_output_tokens: int = 1024


def mixed_lengths(shape: MixedLengths, rng: random.Random, requests: int) -> Iterator[Arrival]:
    """So many requests in order of time."""
    at_s = 0.0
    shortest, longest = shape.long_tokens
    for _ in range(requests):
        at_s += rng.expovariate(shape.requests_per_s)
        kind = LONG if rng.random() < shape.long_share else SHORT
        if kind == LONG:
            tokens = round(shortest * math.exp(rng.random() * math.log(longest / shortest)))
        else:
            tokens = min(
                max(16, round(rng.lognormvariate(*shape.short_log))), shape.max_short_tokens
            )
        output = min(max(1, round(rng.lognormvariate(*shape.output_log))), shape.max_output_tokens)
        prompt = Prompt(prompt_tokens=tokens, output_tokens=output, blocks=array("Q"))
        yield Arrival(at_s=at_s, prompt=prompt, kind=kind)
