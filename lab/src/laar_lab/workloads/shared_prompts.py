"""Loads whose requests share long prefixes, or none: documents, batches, tenants, agents.

For each there is a shape, with its constants, and a function that draws requests. Lengths are
log-normal, given by the mean and the standard deviation of the logarithm. Open loads arrive as a
Poisson process; agents are sessions whose requests wait for the previous answer.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Prompt, Turn, spread

Log = tuple[float, float]

_BITS = 20  # bits for a text's block ids: up to a million blocks
_OWN = 1 << 40  # first number of the texts that only one request or session has
_SESSIONS = 1 << 20  # more than a client has in one run


class _Text:
    """A prompt under construction."""

    def __init__(self) -> None:
        self.blocks = array("Q")
        self.tokens = 0

    def add(self, number: int, tokens: int) -> None:
        """Append a text; its ids follow from its number and position."""
        self.tokens += tokens
        fresh = self.tokens // BLOCK_TOKENS - len(self.blocks)
        if fresh > 0:
            self.blocks.extend(spread((number << _BITS) + len(self.blocks), fresh))

    def prompt(self, output_tokens: int, number: int) -> Prompt:
        """Return the prompt with its answer, whose blocks a later prompt may reuse."""
        prompt_tokens = self.tokens
        self.add(number, output_tokens)
        return Prompt(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, blocks=self.blocks[:]
        )


def _length(rng: random.Random, log: Log, most: int) -> int:
    return max(1, min(most, round(rng.lognormvariate(*log))))


def _ranked(rng: random.Random, count: int, skew: float) -> Iterator[int]:
    """Yield random numbers from 1 to `count`, with weight 1 / k ** skew for number k."""
    numbers = range(1, count + 1)
    cumulative, total = [], 0.0
    for rank in numbers:
        total += rank**-skew
        cumulative.append(total)
    while True:
        yield rng.choices(numbers, cum_weights=cumulative)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Single questions, which may come after a shared text: a document, or a tenant's prompt.

    Args:
        requests_per_s: rate of the Poisson arrivals.
        header_tokens: tokens common to all.
        texts: number of shared texts; may be 0.
        skew: skew of their popularity.
        text_log: length of the shared texts.
        max_text_tokens: limit on that length.
        question_log: length of the unique part.
        max_question_tokens: limit on that length.
        output_log: length of answers.
        max_output_tokens: limit on that length.
    """

    requests_per_s: float
    header_tokens: int = 64
    texts: int = 0
    skew: float = 1.0
    text_log: Log = (9.2, 0.4)
    max_text_tokens: int = 24_000
    question_log: Log = (4.5, 0.6)
    max_question_tokens: int = 100_000
    output_log: Log = (4.8, 0.6)
    max_output_tokens: int = 512


def questions(shape: Questions, rng: random.Random, duration_s: float) -> Iterator[Arrival]:
    """Yield the questions of `duration_s` seconds in chronological order."""
    lengths = [_length(rng, shape.text_log, shape.max_text_tokens) for _ in range(shape.texts)]
    ranks = _ranked(rng, shape.texts, shape.skew)
    at_s, number = 0.0, _OWN
    while (at_s := at_s + rng.expovariate(shape.requests_per_s)) < duration_s:
        number += 1
        text = _Text()
        text.add(1, shape.header_tokens)
        if lengths:
            rank = next(ranks)
            text.add(1 + rank, lengths[rank - 1])
        text.add(number, _length(rng, shape.question_log, shape.max_question_tokens))
        output = _length(rng, shape.output_log, shape.max_output_tokens)
        yield Arrival(at_s=at_s, prompt=text.prompt(output, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Jobs that each send many questions about one document together, plus other questions.

    Args:
        every_s: mean time between two jobs.
        size: smallest and largest number of questions per job.
        over_s: time within which a job's questions arrive.
        document_log: length of a job's document.
        background: the other questions.
    """

    every_s: float = 15.0
    size: tuple[int, int] = (12, 48)
    over_s: float = 0.5
    document_log: Log = (9.3, 0.4)
    background: Questions = Questions(requests_per_s=4.0, question_log=(6.2, 1.0))


def batches(shape: BatchShape, rng: random.Random, duration_s: float) -> Iterator[Arrival]:
    """Yield the jobs and the background of `duration_s` seconds in chronological order."""
    others = questions(shape.background, random.Random(rng.getrandbits(64)), duration_s)
    return heapq.merge(others, _jobs(shape, rng, duration_s), key=lambda arrival: arrival.at_s)


def _jobs(shape: BatchShape, rng: random.Random, duration_s: float) -> Iterator[Arrival]:
    at_s, number = 0.0, 2 * _OWN
    pending: list[Arrival] = []
    while (at_s := at_s + rng.expovariate(1.0 / shape.every_s)) < duration_s:
        while pending and pending[0].at_s <= at_s:
            yield pending.pop(0)
        number += 1
        document, tokens = number, _length(rng, shape.document_log, 32_000)
        for _ in range(rng.randint(*shape.size)):
            number += 1
            text = _Text()
            text.add(1, 64)
            text.add(document, tokens)
            text.add(number, _length(rng, (4.5, 0.5), 1000))
            prompt = text.prompt(_length(rng, (4.2, 0.6), 256), number)
            due_s = at_s + rng.uniform(0.0, shape.over_s)
            pending.append(Arrival(at_s=due_s, prompt=prompt, kind="batch"))
        pending.sort(key=lambda arrival: arrival.at_s)
    yield from pending


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShape:
    """Coding agents: loops of tool calls, with a common system prompt.

    Args:
        system_tokens: length of the common system prompt.
        first_log: length of a session's task.
        growth_log: length of a tool's result.
        max_growth_tokens: limit on that length.
        output_log: length of answers.
        max_output_tokens: limit on that length.
        mean_turns: mean of the geometric number of requests per session.
        pause_log: duration of a tool call, in seconds.
        max_prompt_tokens: limit at which a session ends.
    """

    system_tokens: int = 8192
    first_log: Log = (6.5, 1.0)
    growth_log: Log = (6.3, 0.9)
    max_growth_tokens: int = 16_000
    output_log: Log = (4.6, 0.8)
    max_output_tokens: int = 1000
    mean_turns: float = 20.0
    pause_log: Log = (0.9, 0.8)
    max_prompt_tokens: int = 120_000


def agents(
    shape: AgentShape, rng: random.Random, client: int = 0
) -> Iterator[tuple[str, Iterator[Turn]]]:
    """Yield endless sessions with their names; those of different clients differ."""
    number = _OWN + client * _SESSIONS
    while True:
        number += 1
        yield f"agent-{number - _OWN}", _loop(shape, random.Random(rng.getrandbits(64)), number)


def _loop(shape: AgentShape, rng: random.Random, number: int) -> Iterator[Turn]:
    text = _Text()
    text.add(1, shape.system_tokens)
    text.add(number, _length(rng, shape.first_log, shape.max_growth_tokens))
    turns = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / shape.mean_turns))
    for turn in range(turns):
        if text.tokens > shape.max_prompt_tokens:
            return
        prompt = text.prompt(_length(rng, shape.output_log, shape.max_output_tokens), number)
        pause_s = min(30.0, rng.lognormvariate(*shape.pause_log)) if turn else 0.0
        yield Turn(prompt=prompt, after_answer_s=pause_s)
        text.add(number, _length(rng, shape.growth_log, shape.max_growth_tokens))


def in_bursts(
    arrivals: Iterator[Arrival],
    *,
    period_s: float = 60.0,
    time_share: float = 0.25,
    load_share: float = 0.75,
) -> Iterator[Arrival]:
    """Yield the requests, compressing `load_share` of each period into its first `time_share`."""
    busy_s, cut_s = period_s * time_share, period_s * load_share
    for arrival in arrivals:
        periods, within_s = divmod(arrival.at_s, period_s)
        if within_s < cut_s:
            within_s *= busy_s / cut_s
        else:
            within_s = busy_s + (within_s - cut_s) * (period_s - busy_s) / (period_s - cut_s)
        yield Arrival(
            at_s=periods * period_s + within_s,
            prompt=arrival.prompt,
            session=arrival.session,
            kind=arrival.kind,
        )
