"""The picker's own probes while endpoints join and leave."""

import asyncio

from laar.health import Reply
from support import Answer, eventually
from support.pickers import request


async def test_an_endpoint_removed_during_its_probe_is_used_once_it_returns(gateway, monkeypatch):
    monkeypatch.setattr("laar.health.breaker.FIRST_TRIAL_S", 0.1)
    sound, bad = await gateway.upstream(), await gateway.upstream()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def refusal():
        asked.set()
        await answer.wait()
        yield b"no"

    bad.chat_answer = lambda: Answer(status=503, chunks=refusal())
    both = [(sound.address, "m"), (bad.address, "m")]
    gateway.members(*both)
    runner = await gateway.picker()
    director, clock = runner.picker.director, runner.picker.clock
    await eventually(lambda: len(director.table) == 2, what="both endpoints")

    def decided():
        return director.decide(request(), clock())

    held = []
    slot = director.table.slot(bad.address)
    while sum(decision.slot == slot for decision in held) < 4:
        held.append(decided())
    # The last one stays in flight.
    for decision in [each for each in held if each.slot == slot][:-1]:
        director.replied(decision, Reply(status=503), clock())
    await asyncio.wait_for(asked.wait(), 10.0)
    gateway.members(both[0])
    await eventually(lambda: len(director.table) == 1, what="the endpoint to leave")
    bad.chat_answer = Answer(body=b'{"choices": []}')
    answer.set()
    await eventually(
        lambda: not director.health.records.endpoints[slot].breaker.probing,
        what="the answer to the probe",
    )
    gateway.members(*both)
    await eventually(
        lambda: director.table.slot(bad.address) == slot, what="the endpoint to return"
    )
    await eventually(lambda: decided().slot == slot, what="a request at the endpoint")
