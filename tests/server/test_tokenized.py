"""Prompts that are tokenized in parallel to their requests."""

import asyncio
import itertools
import random
import time

import numpy as np
import orjson

from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.tokens import Stored
from laar.protocol.openai import read_body
from laar.server import tokenized
from laar.server.tokenized import TokenizedPrompts
from laar.telemetry.problems import Problems
from support import eventually

IDS = np.arange(16, dtype=np.uint32)


def fleet(held):
    """A director over one endpoint, whose cache holds some token ids."""
    table = EndpointTable()
    table.replace("test", [EndpointSpec(address="a:1", models=("m",))])
    prefixes = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    prefixes.make_room(table.capacity)
    prefixes.stored(0, "m", Stored(hashes=range(len(held) // 16), ids=held, block_size=16))
    return Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(1),
        prefixes=prefixes,
    )


async def test_prompts_are_learned_while_the_tokenizer_never_rests(monkeypatch):
    monkeypatch.setattr(tokenized, "CHECK_S", 0.0)
    director = fleet(IDS)
    loop, numbers = asyncio.get_running_loop(), itertools.count()

    def ask():
        text = f"{next(numbers)} text " * 40
        body = orjson.dumps({"messages": []})
        request = Request(
            id="r", api=Api.CHAT, model="m", spans=(text,), chars=len(text), body=body
        )
        decision = director.decide(request, time.monotonic())
        prompts.decided(decision)
        end = Completion(status=200, cause="complete", latency_s=0.1)
        director.settle(decision, end)
        prompts.settled(decision, end)

    class Busy:
        """For each prompt that it is given, another one comes."""

        def ids(self, _api, _document):
            loop.call_soon_threadsafe(ask)
            return IDS

    prompts = TokenizedPrompts(
        director.prefixes,
        director.table,
        {"m": Busy()},
        clock=time.monotonic,
        problems=Problems(),
    )
    for _ in range(3):
        ask()
    running = asyncio.create_task(prompts.run())
    try:
        await eventually(lambda: prompts.counts["known"] > 2, what="prompts that are known")
        assert prompts.counts["failed"] == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_prompt_of_token_ids_needs_no_tokenizer(monkeypatch):
    """Its length is known, and its blocks are those that the events name."""
    monkeypatch.setattr(tokenized, "CHECK_S", 0.0)
    ids = np.array([7, 123_456] * 200, np.uint32)
    director = fleet(ids)

    class Fails:
        def ids(self, _api, _document):
            raise AssertionError("it is not asked")

    prompts = TokenizedPrompts(
        director.prefixes,
        director.table,
        {"m": Fails()},
        clock=time.monotonic,
        problems=Problems(),
    )
    body = orjson.dumps({"model": "m", "prompt": ids.tolist()})
    read = read_body(Api.COMPLETIONS, body)

    def decided():
        request = Request(
            id="r",
            api=Api.COMPLETIONS,
            model="m",
            spans=read.spans,
            chars=read.chars,
            tokens=read.tokens,
            body=body,
        )
        return director.decide(request, time.monotonic())

    running = asyncio.create_task(prompts.run())
    try:
        decision = decided()
        assert decision.view.tokens[decision.position] == 400
        prompts.decided(decision)
        end = Completion(status=200, cause="complete", latency_s=0.1, prompt_tokens=400)
        director.settle(decision, end)
        prompts.settled(decision, end)
        await eventually(lambda: prompts.counts["known"] == 1, what="its blocks")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert prompts.counts["failed"] == prompts.counts["unlike"] == 0
