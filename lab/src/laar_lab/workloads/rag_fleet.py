"""Retrieval loads on the virtual fleet, through the production hook.

A prompt is a short system message, the documents, the hook's note if it moved any, and a unique
question. Its blocks are those that an engine would hash: two prompts share the whole blocks up to
the end of their last common document. The hook reads real bodies; only the order in its
results is applied to the simulated prompt.

Documents of unequal length are not modeled, nor is the picker's latency (see `python -m bench
hooked`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import orjson
import xxhash

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings
from laar.context.turn import TurnPlan
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Exchange, Prompt, VirtualFleet, spread

DOC_TOKENS = 512
_SYSTEM_TOKENS = 40  # not a multiple of a block, so sharing is rounded down
_QUESTION_TOKENS = 48
_BYTES_PER_TOKEN = 4
_DOCUMENT = re.compile(rb'<document id=\\"d(\d+)')


def prompt_of(
    docs: Sequence[int], number: int, *, note_tokens: int = 0, output_tokens: int = 1
) -> Prompt:
    """Return a prompt with the documents in this order, and a unique ending."""
    blocks = spread(1, _SYSTEM_TOKENS // BLOCK_TOKENS)
    tokens, prefix = _SYSTEM_TOKENS, 0
    for doc in docs:
        tokens += DOC_TOKENS
        prefix = _hash(prefix, doc)
        blocks += spread(prefix, tokens // BLOCK_TOKENS - len(blocks))
    tokens += note_tokens + _QUESTION_TOKENS
    blocks += spread(_hash(number, -1), (tokens + output_tokens) // BLOCK_TOKENS - len(blocks))
    return Prompt(prompt_tokens=tokens, output_tokens=output_tokens, blocks=array("Q", blocks))


def _hash(a: int, b: int) -> int:
    return xxhash.xxh3_64_intdigest(b"%d/%d" % (a, b))


class RagClient:
    """Makes the requests of a load, optionally with the hook, and reports accepted ones to it.

    Args:
        load: document ids of each request.
        hooked: whether the hook orders them.
        output_tokens: tokens of each answer.
        objective_s: TTFT objective of each request; None for no objective.
    """

    def __init__(
        self,
        load: Sequence[Sequence[int]],
        *,
        hooked: bool,
        output_tokens: int = 1,
        objective_s: float | None = None,
    ) -> None:
        self._objective_s = objective_s
        self._load = load
        self._output_tokens = output_tokens
        self._hook = ContextHook(ContextSettings(holdout_share=0.0)) if hooked else None
        self._plans: dict[int, TurnPlan] = {}
        self._texts: dict[int, str] = {}

    def arrivals(self, fleet: VirtualFleet, times_s: Iterable[float]) -> Iterator[Arrival]:
        """Yield the requests when due, so that the hook knows which were accepted by then."""
        for number, docs, at_s in zip(count(), self._load, times_s, strict=False):
            yield Arrival(
                at_s=at_s,
                prompt=self._prompt(number, docs, fleet.clock.now),
                kind=str(number),
                ttft_objective_s=self._objective_s,
            )

    def ended(self, arrival: Arrival, exchange: Exchange) -> None:
        """Commit a request that an endpoint accepted."""
        plan = self._plans.pop(int(arrival.kind), None)
        if self._hook is not None and plan is not None and exchange.status == 200:
            self._hook.commit(plan, exchange.end_s)

    def _prompt(self, number: int, docs: Sequence[int], now: float) -> Prompt:
        if self._hook is None:
            return prompt_of(docs, number, output_tokens=self._output_tokens)
        text = "\n".join(self._text(doc) for doc in docs) + f"\n\nQuestion {number}?"
        messages = [
            {"role": "system", "content": "Answer from the documents."},
            {"role": "user", "content": text},
        ]
        body = orjson.dumps({"model": "model", "messages": messages})
        result = self._hook.apply(body, api="chat", tenant="", now=now, mode="on")
        self._plans[number] = result
        self._hook.note(result, now)
        note_tokens = -(-(len(result.body) - len(body)) // _BYTES_PER_TOKEN)
        ordered = [int(doc) for doc in _DOCUMENT.findall(result.body)]
        return prompt_of(
            ordered, number, note_tokens=note_tokens, output_tokens=self._output_tokens
        )

    def _text(self, doc: int) -> str:
        text = self._texts.get(doc)
        if text is None:
            words = f"passage {doc} says so; " * (DOC_TOKENS * _BYTES_PER_TOKEN // 20)
            text = self._texts[doc] = f'<document id="d{doc}">{words}</document>'
        return text
