"""What the picker believes about caches follows the events that engines publish."""

from contextlib import asynccontextmanager

import msgspec
import numpy as np
import yaml
import zmq
import zmq.asyncio

from laar.core.decision import Completion
from laar.fleet.endpoints import Reading
from laar.prefix.tokens import hash_blocks, root
from laar.request import Api, Request
from laar.server.fleet import FleetState
from laar.server.picker import Picker
from laar.settings import Settings
from support import eventually
from support.pickers import request

ADDRESS = "127.0.0.1:9"
SETTINGS = Settings.model_validate({"endpoints": [{"address": ADDRESS, "model": "m"}]})
DONE = Completion(status=200, cause="complete", latency_s=1.0)


@asynccontextmanager
async def publishing_engine(gateway):
    """Yield the director of a picker whose endpoint publishes events, and a function to publish."""
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        entry = {
            "address": "127.0.0.1:9",
            "model": "m",
            "labels": {"laar.dev/kv-events": str(port)},
        }
        gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
        runner = await gateway.picker()
        number = 0

        async def publish(*events):
            nonlocal number
            batch = msgspec.msgpack.encode([0.0, list(events), 0])
            await engine.send_multipart([b"kv", number.to_bytes(8, "big"), batch])
            number += 1

        yield runner.picker.director, publish


def believed(director, prompt):
    """Return the share of a prompt that the endpoint is believed to hold."""
    decision = director.choose(request(prompt), 0.0)
    return 1.0 - decision.uncached_tokens / decision.tokens


async def test_a_cleared_cache_is_believed_empty(gateway):
    async with publishing_engine(gateway) as (director, publish):
        prompt = "a prompt that comes again " * 100
        director.settle(director.decide(request(prompt), 0.0), DONE)
        assert believed(director, prompt) > 0.9

        async def forgotten():
            await publish({"type": "AllBlocksCleared"})
            return believed(director, prompt) == 0.0

        await eventually(forgotten, what="an empty cache")


async def test_events_from_before_an_endpoint_was_removed_do_not_count_when_it_returns(gateway):
    """A request in flight keeps the endpoint's slot, but no events arrive while it is away."""
    async with publishing_engine(gateway) as (director, publish):
        text, ids = "a prompt that the engine let go " * 100, list(range(160))
        beliefs, (spec,) = director.prefixes, director.table.specs()
        chain = beliefs.chain(request(text))
        blocks = hash_blocks(np.array(ids, np.uint32), 16, root("", ""))
        beliefs.blocks_held.learn("m", chain, len(ids), 16, blocks)
        names = list(range(10))
        stored = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None}

        async def followed():
            events = stored | {"token_ids": ids, "block_size": 16}
            await publish({"type": "AllBlocksCleared"}, events)
            return believed(director, text) > 0.9

        await eventually(followed, what="the events")
        held = director.decide(request("another one"), 0.0)
        endpoints = yaml.safe_load(gateway.endpoints_file.read_text())
        gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": []}))
        await eventually(lambda: not len(director.table), what="the endpoint to leave")
        await publish({"type": "BlockRemoved", "block_hashes": names})
        gateway.endpoints_file.write_text(yaml.safe_dump(endpoints))
        await eventually(lambda: len(director.table) == 1, what="the endpoint to return")
        assert director.table.slot(spec.address) == held.slot
        assert believed(director, text) == 0.0


async def test_unreadable_events_are_a_problem_once_an_endpoint_publishes(gateway, monkeypatch):
    monkeypatch.setattr("laar.server.collectors.find_spec", lambda _name: None)
    gateway.members(("127.0.0.1:9", "m"))
    problems = (await gateway.picker()).picker.problems
    assert "kv-events" not in problems
    entry = {"address": "127.0.0.1:8", "model": "m", "labels": {"laar.dev/kv-events": "5557"}}
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
    await eventually(lambda: "kv-events" in problems, what="the problem")
    assert "127.0.0.1:8" in problems["kv-events"]
    assert "pip install '.[kv-events]'" in problems["kv-events"]
    assert problems.counts["kv-events"] == 1


def test_an_engines_cache_is_forgotten_when_it_falls_asleep():
    picker, emptied = Picker(SETTINGS), []
    picker.context.forget = emptied.append
    fleet, beliefs = FleetState(picker), picker.prefixes
    beliefs.make_room(1)
    fleet.replace("test", SETTINGS.listed())
    chain = beliefs.chain(request("some prompt " * 100))

    def share_after(page):
        fleet.reading(ADDRESS, page, 0.0)
        return beliefs.match(chain)[0][0]

    beliefs.settle(beliefs.insert(0, chain, 0.0), None)
    assert share_after(Reading()) > 0.9
    assert share_after(Reading(asleep=1.0)) == 0.0
    beliefs.settle(beliefs.insert(0, chain, 0.0), None)  # cached after the engine woke up
    assert share_after(Reading(asleep=1.0)) > 0.9
    assert share_after(Reading()) > 0.9
    assert emptied == [ADDRESS]


def test_the_restart_of_a_rank_leaves_the_sessions_of_others():
    picker = Picker(SETTINGS)
    fleet, sessions = FleetState(picker), picker.admission.sessions
    fleet.replace("test", SETTINGS.listed())
    fleet.ranked(ADDRESS, 3)
    keys = [f"{ADDRESS}#{rank}" for rank in range(3)]
    for key in keys:
        fleet.reading(key, Reading(capacity_tokens=10_000.0), 0.0)
        slot = picker.table.slot(key)
        prompt = Request(id="", api=Api.CHAT, spans=(f"{key} " * 2_000,))
        chain = picker.prefixes.chain(prompt)
        receipt = picker.prefixes.insert(slot, chain, 0.0)
        place = sessions.begin(f"session of {key}", chain, slot, 6_000.0, 0.0, 1.0, 0.0)
        picker.prefixes.settle(receipt, None)
        sessions.end(place, 1.0)
    fleet.reading(keys[1], Reading(capacity_tokens=10_000.0, restarted=True), 2.0)
    assert [each["endpoint"] for each in sessions.shown(2.0, 9)] == [keys[0], keys[2]]
    fleet.ranked(ADDRESS, 2)  # it may return within a minute
    assert [each["endpoint"] for each in sessions.shown(2.0, 9)] == [keys[0], keys[2]]
