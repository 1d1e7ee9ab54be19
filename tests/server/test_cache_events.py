"""An engine that publishes what its cache does is believed."""

import msgpack
import yaml
import zmq
import zmq.asyncio

from laar.core.request import Api, Request
from support import eventually


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
            decision = runner.picker.director.explain(request, 0.0)
            return 1.0 - decision.uncached_tokens / decision.tokens

        runner.picker.director.decide(request, 0.0)
        assert believed() > 0.9
        number = 0

        async def forgotten():
            nonlocal number
            await publish(engine, number, {"type": "AllBlocksCleared"})
            number += 1
            return believed() == 0.0

        await eventually(forgotten, what="an empty cache")
