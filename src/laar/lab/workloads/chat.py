"""Conversations: the load that GORGO is measured on, made by seed.

Sessions begin by a Poisson process. A quarter are single questions, the others go on for a
geometric number of turns with thinking in between; a turn's prompt is the one before, its answer,
and what the user adds. Constants follow the windows that GORGO's evaluation replays (median prompt
5.7k tokens, 95th percentile 20k, four fifths of the blocks seen before), not its whole data set.

Two properties decide how baselines do, so they are explicit. All prompts begin with the same
template header, as chats do, so "nothing matches" never happens. And a part of the sessions share
one of a few system prompts, longer than the 256 tokens that simple session affinity hashes.

`low_reuse` is the other regime: single questions of 840 tokens, a twentieth of which is shared.

It does not model clients that wait for the answer before they think: times are a schedule's.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laar.lab.fleet import BLOCK_TOKENS, Arrival, Prompt, spread

__all__ = ["ChatSettings", "conversations", "low_reuse"]

_ANSWER = (4.6, 0.7)
_MAX_ANSWER_TOKENS = 128
_HEADER_BLOCKS = 2
_IDS_OF_A_SESSION = 1 << 20
"""Room between the block ids of two sessions; far more than a prompt has blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """A load.

    Args:
        duration_s: sessions begin in this time, before stretching; what falls later is cut.
        sessions_per_s: before stretching. 0.53 makes 4.6 requests a second.
        time_scale: stretches the schedule; 2 is half the load.
        single_share: sessions of one turn.
        mean_turns: of the others.
        think_s: mean time between an answer and the next turn.
        first_tokens: logarithm's mean and deviation of the first prompt.
        max_prompt_tokens: a session ends when its prompt would be longer.
        shared_share: sessions that begin with one of the system prompts.
        system_prompts: how many there are; popular by rank.
    """

    duration_s: float = 900.0
    sessions_per_s: float = 0.53
    time_scale: float = 1.0
    single_share: float = 0.26
    mean_turns: float = 12.0
    think_s: float = 45.0
    first_tokens: tuple[float, float] = (7.7, 1.0)
    max_prompt_tokens: int = 24_000
    shared_share: float = 0.4
    system_prompts: int = 6


def conversations(seed: int, settings: ChatSettings | None = None) -> list[Arrival]:
    """The schedule, in order of time; sessions are named, so affinity may go by the name."""
    settings = settings or ChatSettings()
    rng = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    begin_s, number = 0.0, 0
    while True:
        begin_s += rng.exponential(1.0 / settings.sessions_per_s)
        if begin_s >= settings.duration_s:
            break
        number += 1
        arrivals += _session(rng, settings, number, begin_s)
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return arrivals


def low_reuse(
    seed: int, *, duration_s: float = 600.0, requests_per_s: float = 11.4, time_scale: float = 1.0
) -> list[Arrival]:
    """Single questions, Poisson; of each prompt a header and now and then a template are shared."""
    rng = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    at_s, number = 0.0, 0
    while True:
        at_s += rng.exponential(1.0 / requests_per_s)
        if at_s >= duration_s:
            return arrivals
        number += 1
        tokens = int(np.clip(rng.lognormal(6.4, 0.8), 64, 24_000))
        ids = _ids(number, tokens + _MAX_ANSWER_TOKENS, _HEADER_BLOCKS, 0)
        prompt = _prompt(ids, tokens, _answer_tokens(rng))
        arrivals.append(Arrival(at_s=at_s * time_scale, prompt=prompt, session=str(number)))


def _session(
    rng: np.random.Generator, settings: ChatSettings, number: int, begin_s: float
) -> Iterator[Arrival]:
    single = rng.random() < settings.single_share
    turns = 1 if single else 1 + int(rng.geometric(1.0 / (settings.mean_turns - 1.0)))
    template, shared = 0, _HEADER_BLOCKS
    tokens = max(64, int(rng.lognormal(*settings.first_tokens)))
    if rng.random() < settings.shared_share:
        ranks = 1.0 / np.arange(1, settings.system_prompts + 1)
        template = 1 + int(rng.choice(settings.system_prompts, p=ranks / ranks.sum()))
        shared = _HEADER_BLOCKS + 16 * (1 + template)  # the n-th has 256 * (n + 1) tokens
        tokens = max(tokens, (shared + 1) * BLOCK_TOKENS)
    ids = _ids(number, settings.max_prompt_tokens + _MAX_ANSWER_TOKENS, shared, template)
    at_s, sigma = begin_s, 0.8
    for _ in range(turns):
        if tokens > settings.max_prompt_tokens or at_s >= settings.duration_s:
            return
        answer = _answer_tokens(rng)
        yield Arrival(
            at_s=at_s * settings.time_scale,
            prompt=_prompt(ids, tokens, answer),
            session=str(number),
        )
        at_s += 1.0 + rng.lognormal(math.log(settings.think_s) - 0.5 * sigma**2, sigma)
        tokens += answer + max(1, int(rng.lognormal(6.2, 0.9)))


def _answer_tokens(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(*_ANSWER), 1, _MAX_ANSWER_TOKENS))


def _ids(number: int, tokens: int, shared: int, template: int) -> array[int]:
    """A session's block ids: the header that all share, its template's, its own."""
    header = spread(1, min(shared, _HEADER_BLOCKS))
    rest = spread((1 << 56) + template * _IDS_OF_A_SESSION, shared - _HEADER_BLOCKS)
    return header + rest + spread(number * _IDS_OF_A_SESSION, tokens // BLOCK_TOKENS + 1 - shared)


def _prompt(ids: array[int], tokens: int, answer: int) -> Prompt:
    count = (tokens + answer) // BLOCK_TOKENS
    return Prompt(prompt_tokens=tokens, output_tokens=answer, blocks=ids[:count])
