"""An engine that publishes what its cache does is believed."""

import msgpack
import yaml
import zmq
import zmq.asyncio

from laar.core.decision import Completion
from laar.core.request import Api, Request
from support import eventually

DONE = Completion(status=200, cause="complete", latency_s=1.0)


def publish(socket, number, *events):
    batch = msgpack.packb([0.0, list(events), 0])
    return socket.send_multipart([b"kv", number.to_bytes(8, "big"), batch])


async def test_a_cache_that_was_cleared_is_believed_empty(gateway):
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        entry = {
            "address": "127.0.0.1:9",
            "model": "m",
            "labels": {"laar.dev/kv-events": str(port)},
        }
        gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
        runner = await gateway.picker()
        prompt = "a prompt that comes again " * 100
        request = Request(
            id="r", api=Api.CHAT, model="m", spans=(prompt,), question=prompt, chars=len(prompt)
        )

        def believed():
            decision = runner.picker.director.preview(request, 0.0)
            return 1.0 - decision.uncached_tokens / decision.tokens

        director = runner.picker.director
        director.settle(director.decide(request, 0.0), DONE)
        assert believed() > 0.9
        number = 0

        async def forgotten():
            nonlocal number
            await publish(engine, number, {"type": "AllBlocksCleared"})
            number += 1
            return believed() == 0.0

        await eventually(forgotten, what="an empty cache")


async def test_the_request_after_a_reset_is_believed_although_the_event_comes_with_it(gateway):
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        entry = {
            "address": "127.0.0.1:9",
            "model": "m",
            "labels": {"laar.dev/kv-events": str(port)},
        }
        gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
        runner = await gateway.picker()

        def ask(prompt):
            return Request(
                id="r", api=Api.CHAT, model="m", spans=(prompt,), question="", chars=len(prompt)
            )

        def believed(prompt):
            decision = runner.picker.director.preview(ask(prompt), 0.0)
            return 1.0 - decision.uncached_tokens / decision.tokens

        old, new = "a prompt of yesterday " * 100, "a prompt of today " * 100
        runner.picker.director.settle(runner.picker.director.decide(ask(old), 0.0), DONE)
        runner.picker.director.decide(ask(new), 0.0)
        number = 0

        async def forgotten():
            nonlocal number
            stored = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
            await publish(engine, number, {"type": "AllBlocksCleared"}, stored)
            number += 1
            return believed(old) == 0.0

        await eventually(forgotten, what="an empty cache")
        assert believed(new) > 0.9
