"""Two models are asked at once through a real Envoy; the loser is cancelled, its place freed."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from laar import until_correct
from laar.plugins.companions import Companions
from support import Answer, eventually
from support.artifacts import artifact, model

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_the_first_correct_answer_frees_the_other_place(gateway, http, shape):
    upstreams = {name: await gateway.upstream() for name in "ab"}
    gateway.members(*((upstream.address, name) for name, upstream in upstreams.items()))
    generic = (("en", 4096, "generic", 50),)
    models = {"a": model(0.2, mean=0.55, cells=generic), "b": model(0.0, cells=generic)}
    capability = gateway.directory / "capability.json"
    capability.write_bytes(artifact(models).dump())
    runner = await gateway.picker(accuracy={"capability": str(capability)})
    never = asyncio.Event()

    async def silent():
        await never.wait()
        yield b"{}"

    message = {"role": "assistant", "content": "I am b"}
    upstreams["a"].chat_answer = lambda: Answer(chunks=silent())
    upstreams["b"].chat_answer = lambda: Answer(
        body=orjson.dumps({"choices": [{"message": message}]})
    )
    outcome = await until_correct(
        [{"role": "user", "content": "who?"}],
        lambda text: text == "I am b",
        base_url=(await gateway.envoy(shape)).url(),
        at_once=2,
    )
    assert outcome.correct
    assert [(one.model, one.reason) for one in outcome.attempts] == [("b", "companion")]
    await eventually(lambda: not runner.picker.table.in_flight.any(), what="the freed place")
    assert not runner.picker.director.plugins.get(Companions)._firsts
    never.set()
