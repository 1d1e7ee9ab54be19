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
from laar.core.endpoints import EndpointSpec, EndpointTable
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.tokens import Stored
from laar.server import tokenized
from laar.server.tokenized import TokenizedPrompts
from laar.telemetry.problems import Problems
from support import eventually

IDS = np.arange(16, dtype=np.uint32)


async def test_prompts_are_learned_while_the_tokenizer_never_rests(monkeypatch):
    monkeypatch.setattr(tokenized, "CHECK_S", 0.0)
    table = EndpointTable()
    table.replace("test", [EndpointSpec(address="a:1", models=("m",))])
    prefixes = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    prefixes.make_room(table.capacity)
    prefixes.stored(0, "m", Stored(hashes=[1], ids=IDS, block_size=16))
    director = Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(1),
        prefixes=prefixes,
    )
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

        def ids(self, _api, _document, _chain):
            loop.call_soon_threadsafe(ask)
            return IDS

    prompts = TokenizedPrompts(
        prefixes,
        table,
        {"m": Busy()},
        ask_engines=False,
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
