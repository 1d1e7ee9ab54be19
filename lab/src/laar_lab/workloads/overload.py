"""A load beyond a small fleet's capacity: conversations, and documents that delay them.

It is for four endpoints of one A100 each, with an 8B model under vLLM's scheduler. 9 in 10 requests
are conversations of up to 8K tokens, 1 in 10 are documents of 24K to 64K. There are two tenants.
Arrivals are Poisson and independent of the answers. Objectives are the defaults of the picker's
settings: one second plus five times the prefill on an idle engine. Prompts share nothing.

`medha-picker` runs it in virtual time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from laar.flow.settings import FlowSettings
from laar.request import Api, Request
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import MeasuredAssessor, Site

LOAD = 1.2
"""Load as a multiple of the fleet's capacity."""

CLASSES = ("conversation", "document")
PROFILE = "llama-3-8b-a100"
MODEL = "m"
USUAL_ANSWER_TOKENS = 200
"""Median length of an answer."""

QUADRATIC_TOKENS = 60_000.0
"""Llama 3 8B: parameters / (layers * hidden)."""

PROBE_POLICY = "laar-paper"
"""Policy for measuring the fleet's capacity, with all prompts sent together, since it spreads their
tokens evenly."""

_NONE_IS_LONG = 1 << 30
QUEUES: Mapping[str, FlowSettings | None] = {
    "slack": FlowSettings(order="lars"),
    "arrival, kept apart": FlowSettings(order="fcfs"),
    "arrival": FlowSettings(order="fcfs", long_tokens=_NONE_IS_LONG),
    "no queue": None,
}
"""The picker's queues to compare: by slack; by arrival, with and without the rules for long prompts
that slack order includes; and none."""

_ENDPOINTS = 4
_DOCUMENTS = 0.1
_LIGHT_TOKENS = 2000.0
"""A fifth of the average request's weight, so that enough requests are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request of the load.

    Args:
        number: index in order of arrival.
        at_s: time of arrival.
        kind: one of `CLASSES`.
        tenant: the tenant that is charged for its tokens.
        prompt_tokens: length of the prompt, none of which is cached anywhere.
        output_tokens: length of the answer.
        objective_s: seconds from arrival to the first token.
    """

    number: int
    at_s: float
    kind: str
    tenant: str
    prompt_tokens: int
    output_tokens: int
    objective_s: float


@lru_cache(maxsize=1)
def sites() -> tuple[Site, ...]:
    """Return the four endpoints."""
    engine = load_profile(PROFILE)
    return tuple(Site(name=f"e{i}", model=MODEL, engine=engine) for i in range(_ENDPOINTS))


@lru_cache(maxsize=1)
def assessor() -> MeasuredAssessor:
    """Return the assessor with the fleet's measured speeds."""
    return MeasuredAssessor(sites())


def weight(ask: Ask) -> float:
    """Return a prompt's cost in tokens of a short one; attention makes long prompts cost more."""
    return ask.prompt_tokens * (1.0 + ask.prompt_tokens / QUADRATIC_TOKENS)


def overload(carried_per_s: float, seconds: float, seed: int) -> list[Ask]:
    """Return a load of `LOAD` times the capacity of a fleet, for `seconds`.

    The load is measured by weight, because one more document per minute adds 2 %.

    Args:
        carried_per_s: `weight` that the fleet can serve per second.
        seconds: duration of the load, which is approximate because arrivals are random.
        seed: seed of the load.
    """
    most_weight = LOAD * carried_per_s * seconds
    total, count = 0.0, 0
    for ask in asks(math.inf, 10 + int(most_weight / _LIGHT_TOKENS), seed):
        if total >= most_weight:
            break
        total, count = total + weight(ask), count + 1
    return asks(count / seconds, count, seed)


def asks(rate: float, count: int, seed: int) -> list[Ask]:
    """Return `count` requests at a rate in requests/s; at an infinite rate, all arrive together.

    With the same seed, loads of different rates have the same requests.
    """
    rng = random.Random(f"{seed}/picker")
    known = assessor().assess(Request(id="", api=Api.CHAT), [MODEL], (), 0.0)
    per_token_s = float(known.seconds_per_token[0])
    drawn, now = [], 0.0
    for number in range(count):
        now += rng.expovariate(1.0) / rate
        kind = CLASSES[rng.random() < _DOCUMENTS]
        if kind == "document":
            tokens = rng.randint(24_000, 64_000)
        else:
            tokens = min(8192, max(16, int(rng.lognormvariate(math.log(1730), 0.93))))
        alone_s = per_token_s * tokens * (1.0 + tokens / QUADRATIC_TOKENS)
        drawn.append(
            Ask(
                number=number,
                at_s=now,
                kind=kind,
                tenant=rng.choice(("a", "b")),
                prompt_tokens=tokens,
                output_tokens=min(
                    2048, max(1, int(rng.lognormvariate(math.log(USUAL_ANSWER_TOKENS), 0.55)))
                ),
                objective_s=1.0 + 5.0 * alone_s,
            )
        )
    return drawn
