"""Conversations: prompts that grow turn by turn, so that prefixes are worth caching.

`ChatShape` draws conversations like those of GORGO's traces: Poisson starts, a share of single
questions, a geometric number of turns otherwise, log-normal pauses, lengths and growth. Two details
determine how good baselines look. Conversations share a few system prompts, so a hash of the first
256 tokens sends a third of all conversations to one endpoint. And every prompt begins with the chat
template's header, so each prompt matches something.

The trace sets the times (an open loop): a turn does not wait for the previous answer.

`RouterShape` is llm-router's cloud benchmark: sessions that start together and share one long
system prompt. A turn is sent when it is due, or later, once the previous one is answered.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Conversation, Prompt, spread

_WARM_UP_S = 1800.0
"""Conversations begin this long before the run, so that it starts in the middle of them."""

_TAPE_BITS = 20  # bits for a conversation's block ids: up to a million blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """The shape of conversations, in tokens and seconds.

    Args:
        requests_per_s: average rate, including turns that are too long.
        single_share: share of conversations with a single turn.
        mean_turns: mean number of turns of the others.
        pause_s: median pause between turns; `pause_sigma` is the deviation of its logarithm.
        first_log: mean and standard deviation of the logarithm of the first prompt's length.
        growth_log: the same for the text that a turn adds to the previous answer.
        output_log: the same for the length of answers.
        max_output_tokens: limit at which answers are cut.
        max_prompt_tokens: prompt length above which a conversation ends.
        header_tokens: tokens common to all prompts.
        template_share: share of conversations that begin with one of a few system prompts.
        templates: number of these prompts; the k-th is 1/k as common as the first.
        template_tokens: their length.
    """

    requests_per_s: float = 4.6
    single_share: float = 0.26
    mean_turns: float = 12.0
    pause_s: float = 33.0
    pause_sigma: float = 0.8
    first_log: tuple[float, float] = (7.7, 1.0)
    growth_log: tuple[float, float] = (6.2, 0.9)
    output_log: tuple[float, float] = (4.6, 0.7)
    max_output_tokens: int = 128
    max_prompt_tokens: int = 24_000
    header_tokens: int = 32
    template_share: float = 0.45
    templates: int = 4
    template_tokens: int = 512

    @property
    def turns(self) -> float:
        """Average number of turns of a conversation."""
        return self.single_share + (1.0 - self.single_share) * self.mean_turns


GORGO_CHATS = ChatShape()
"""GORGO's replayed windows: prompts of 7k to 9k tokens on average, mostly seen before."""

WILDCHAT = ChatShape(
    requests_per_s=11.4,
    single_share=1.0,
    first_log=(6.23, 1.0),
    max_output_tokens=512,
    output_log=(5.3, 0.7),
    template_share=0.03,
)
"""GORGO's low-reuse windows: single questions of about 840 tokens, 5 % seen before."""


@dataclass(slots=True)
class _Chat:
    """A conversation: its ids so far, and the number of turns left."""

    tape: array[int]
    base: int
    turns_left: int
    prompt_tokens: int
    session: str

    def reach(self, tokens: int) -> None:
        """Extend the ids to cover `tokens` tokens."""
        short = tokens // BLOCK_TOKENS - len(self.tape)
        if short > 0:
            self.tape.extend(spread(self.base + len(self.tape), short))


def chats(shape: ChatShape, rng: random.Random, duration_s: float) -> Iterator[Arrival]:
    """Yield the requests of conversations for `duration_s` seconds, sorted by time."""
    rate = shape.requests_per_s / shape.turns
    begins = -_WARM_UP_S + rng.expovariate(rate)
    live: list[tuple[float, int, _Chat]] = []
    number = 0
    while True:
        if not live or begins < live[0][0]:
            if begins >= duration_s:
                if not live:
                    return
                begins = math.inf
                continue
            number += 1
            heapq.heappush(live, (begins, number, _begin(shape, rng, number)))
            begins += rng.expovariate(rate)
            continue
        at_s, order, chat = heapq.heappop(live)
        if at_s >= duration_s:
            continue
        prompt = _turn(shape, rng, chat)
        if prompt is None:
            continue
        if at_s >= 0.0:
            yield Arrival(at_s=at_s, prompt=prompt, session=chat.session)
        if chat.turns_left:
            pause_s = shape.pause_s * math.exp(shape.pause_sigma * rng.gauss(0.0, 1.0))
            heapq.heappush(live, (at_s + pause_s, order, chat))


def _begin(shape: ChatShape, rng: random.Random, number: int) -> _Chat:
    tape = spread(1, shape.header_tokens // BLOCK_TOKENS)
    tokens = shape.header_tokens + max(1, round(rng.lognormvariate(*shape.first_log)))
    if rng.random() < shape.template_share:
        ranks = range(1, shape.templates + 1)
        template = rng.choices(ranks, [1.0 / rank for rank in ranks])[0]
        tape.extend(spread(template << _TAPE_BITS, shape.template_tokens // BLOCK_TOKENS))
        tokens += shape.template_tokens
    turns = 1
    if rng.random() >= shape.single_share:
        # Geometric from 1; a mean of 1 would leave log(0).
        turns = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / shape.mean_turns))
    base = (number + shape.templates) << _TAPE_BITS
    return _Chat(tape, base, turns, tokens, f"chat-{number}")


def _turn(shape: ChatShape, rng: random.Random, chat: _Chat) -> Prompt | None:
    """Return the next turn's prompt, or None if it is too long and so ends the conversation."""
    if chat.prompt_tokens > shape.max_prompt_tokens:
        return None
    output = max(1, min(round(rng.lognormvariate(*shape.output_log)), shape.max_output_tokens))
    prompt_tokens, total = chat.prompt_tokens, chat.prompt_tokens + output
    chat.reach(total)
    chat.turns_left -= 1
    chat.prompt_tokens = total + max(1, round(rng.lognormvariate(*shape.growth_log)))
    return Prompt(
        prompt_tokens=prompt_tokens,
        output_tokens=output,
        blocks=chat.tape[: total // BLOCK_TOKENS],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterShape:
    """llm-router's sessions, as made by its `cmd/bench` for real engines.

    The trace is scripted: a prompt contains the previous turns, each with the reply "ack tN"
    whatever the engine answered. The original lengths are in characters. A run of one letter has
    two characters per token, random letters have 1.4 (with a BPE vocabulary of 131k; Qwen's was not
    available), and a message's frame is five tokens. These agree with the published hit rates.

    Args:
        sessions: number of sessions.
        turns: turns per session.
        system_tokens: length of the shared system prompt, 6,144 characters of one letter.
        user_tokens: length of a turn, about 88 random characters and a frame.
        reply_tokens: length of the scripted reply.
        first_output_tokens: length of a session's first answer: `max_tokens`, because the model has
            not seen yet that replies are short.
        output_tokens: length of the other answers, which follow the script's example.
        long_share: share of the other answers that are as long as the first.
        gap_s: seconds between the due times of successive turns of a session.
        jitter_s: interval within which sessions start.
        gap_jitter_s: largest delay of a turn.
        code_share: share of sessions with a shared piece of code of `code_tokens`.
        tool_share: share of turns with a tool call and its result, of `tool_tokens`.
    """

    sessions: int
    turns: int = 8
    system_tokens: int = 3072
    user_tokens: int = 68
    reply_tokens: int = 8
    first_output_tokens: int = 64
    output_tokens: int = 5
    long_share: float = 0.0
    gap_s: float = 0.04
    jitter_s: float = 0.2
    gap_jitter_s: float = 0.05
    code_share: float = 0.4
    code_tokens: int = 768
    tool_share: float = 0.3
    tool_tokens: int = 64


def router_sessions(shape: RouterShape, rng: random.Random) -> list[Conversation]:
    """Return the sessions with all their turns."""
    sessions = []
    for number in range(1, shape.sessions + 1):
        tape = spread(1, shape.system_tokens // BLOCK_TOKENS)
        tokens = shape.system_tokens
        if rng.random() < shape.code_share:
            tape.extend(spread(1 << _TAPE_BITS, shape.code_tokens // BLOCK_TOKENS))
            tokens += shape.code_tokens
        chat = _Chat(tape, (number + 1) << _TAPE_BITS, shape.turns, tokens, f"session-{number}")
        start_s = rng.uniform(0.0, shape.jitter_s)
        turns, due_s = [], []
        for turn in range(shape.turns):
            chat.prompt_tokens += shape.user_tokens
            chat.prompt_tokens += shape.tool_tokens * (rng.random() < shape.tool_share)
            chat.reach(chat.prompt_tokens)
            long = rng.random() < shape.long_share or not turn
            turns.append(
                Prompt(
                    prompt_tokens=chat.prompt_tokens,
                    output_tokens=shape.first_output_tokens if long else shape.output_tokens,
                    blocks=chat.tape[:],
                )
            )
            due_s.append(start_s + turn * shape.gap_s + rng.uniform(0.0, shape.gap_jitter_s))
            chat.prompt_tokens += shape.reply_tokens
        sessions.append(Conversation(session=chat.session, due_s=tuple(due_s), turns=tuple(turns)))
    return sessions
