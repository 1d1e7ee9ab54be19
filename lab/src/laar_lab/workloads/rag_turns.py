"""Conversations about documents, and prompts with memories, as bodies that the hook changes.

A body's prompt is hashed block by block as text, so that each change made by the hook (an order, a
note that replaces a document) reaches the simulated engine. Four bytes are one token.

In a conversation, the documents of a turn belong to the conversation's topic, whose popularity
falls with its rank; a share of them occurred in earlier turns (MT-RAG: 40 %). A prompt with
memories has the user's memories that best fit the question, which are mostly the same.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import xxhash

from laar.context.hook import ContextHook
from laar.context.turn import TurnPlan
from laar_lab.sim.fleet import BLOCK_TOKENS, Prompt

BYTES_PER_TOKEN = 4
_WORDS = [
    "harbour",
    "glacier",
    "lantern",
    "violin",
    "copper",
    "orchard",
    "saddle",
    "compass",
    "meadow",
    "quarry",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request of a conversation.

    Args:
        conversation: index of the conversation.
        number: index of the turn.
        docs: ids of the documents, best first.
        at_s: when it is due.
    """

    conversation: int
    number: int
    docs: tuple[int, ...]
    at_s: float


def conversations(
    seed: int,
    *,
    count: int,
    turns: int,
    docs: int,
    repeats: float,
    every_s: float,
    think_s: float = 20.0,
    topics: int = 12,
    topic_docs: int = 40,
) -> list[Turn]:
    """Return the turns of conversations, by time; one begins every `every_s` seconds on average."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(topics)]
    made: list[Turn] = []
    start = 0.0
    for conversation in range(count):
        start += rng.expovariate(1 / every_s)
        first = rng.choices(range(topics), weights)[0] * topic_docs
        pool = [first + i for i in range(topic_docs)]
        ranks = [(i + 1) ** -0.8 for i in range(topic_docs)]
        seen: list[int] = []
        for number in range(turns):
            again = rng.sample(seen, min(len(seen), round(repeats * docs)))
            chosen = list(again)
            while len(chosen) < docs:
                doc = rng.choices(pool, ranks)[0]
                if doc not in chosen and (doc not in seen or len(seen) > topic_docs - docs):
                    chosen.append(doc)
            rng.shuffle(chosen)
            seen += [doc for doc in chosen if doc not in seen]
            made.append(
                Turn(
                    conversation=conversation,
                    number=number,
                    docs=tuple(chosen),
                    at_s=start + number * think_s,
                )
            )
    return sorted(made, key=lambda turn: (turn.at_s, turn.conversation))


def memories(
    seed: int, *, users: int, questions: int, k: int, pool: int, every_s: float
) -> list[Turn]:
    """Return users' questions, each with the `k` memories that fit best by a noisy score."""
    rng = random.Random(seed)
    made = []
    at_s = 0.0
    base = [[rng.gauss(0, 1) for _ in range(pool)] for _ in range(users)]
    for number in range(users * questions):
        user = rng.randrange(users)
        scores = [(own + rng.gauss(0, 0.5), i) for i, own in enumerate(base[user])]
        chosen = [i + user * pool for _, i in sorted(scores, reverse=True)[:k]]
        at_s += rng.expovariate(1 / every_s)
        made.append(Turn(conversation=number, number=0, docs=tuple(chosen), at_s=at_s))
    return made


def document(doc: int, tokens: int) -> str:
    """Return a text that shares no prefix with any other document's."""
    rng = random.Random(doc)
    parts = [f"Every {rng.choice(_WORDS)} of kind {doc} is described here."]
    size = len(parts[0])
    while size < tokens * BYTES_PER_TOKEN:
        parts.append(f"The {rng.choice(_WORDS)} {rng.randint(10, 9999)} is {rng.choice(_WORDS)}.")
        size += len(parts[-1]) + 1
    return " ".join(parts)[: tokens * BYTES_PER_TOKEN]


class HookedBodies:
    """Makes prompts from request bodies that the hook has changed.

    Args:
        hook: the hook; None to leave bodies unchanged.
        output_tokens: tokens of each answer.
    """

    def __init__(self, hook: ContextHook | None, *, output_tokens: int) -> None:
        self._hook = hook
        self._output_tokens = output_tokens
        self._plans: dict[str, TurnPlan] = {}

    def prompt(self, name: str, messages: Sequence[dict[str, str]], now: float) -> Prompt:
        """Return the prompt of a request, and remember it under its name for `accepted`."""
        body = orjson.dumps({"model": "model", "messages": messages})
        if self._hook is not None:
            result = self._hook.apply(body, api="chat", tenant="", now=now, mode="on")
            self._plans[name] = result
            messages = orjson.loads(result.body)["messages"]
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages).encode()
        tokens = len(text) // BYTES_PER_TOKEN
        step = BLOCK_TOKENS * BYTES_PER_TOKEN
        blocks, last = array("Q"), 0
        for at in range(0, len(text) - step + 1, step):
            last = xxhash.xxh3_64_intdigest(text[at : at + step], last)
            blocks.append(last)
        more = (tokens + self._output_tokens) // BLOCK_TOKENS - len(blocks)
        for i in range(max(0, more)):
            blocks.append(xxhash.xxh3_64_intdigest(f"{name}/{i}".encode(), last))
        return Prompt(prompt_tokens=tokens, output_tokens=self._output_tokens, blocks=blocks)

    def removed_bytes(self, name: str) -> int:
        """Return how much text notes replace in a prompt that was not accepted yet."""
        return self._plans[name].removed_bytes if self._hook is not None else 0

    def accepted(self, name: str, now: float) -> None:
        """Commit a request that an endpoint accepted."""
        if self._hook is not None:
            self._hook.commit(self._plans.pop(name), now)
