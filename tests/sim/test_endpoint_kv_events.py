"""KV events arrive over ZMQ as from a real vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio
from sim_endpoint import Running, running

from laar_lab.sim.endpoint import KvEventSettings
from laar_lab.sim.endpoint.tokenizer import block_hashes

TOPIC = "kv@test@sim"


@asynccontextmanager
async def publishing(**settings: Any) -> AsyncIterator[tuple[Running, dict[str, Any]]]:
    kv_events = KvEventSettings(
        endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", topic=TOPIC
    )
    async with running(kv_events=kv_events, **settings) as sim:
        (source,) = (await sim.http.get("/kv_event_sources")).json()
        yield sim, source


@asynccontextmanager
async def subscribed(sim: Running, source: dict[str, Any]) -> AsyncIterator[zmq.asyncio.Socket]:
    """Yield a subscriber that has received the latest batch, so its subscription has arrived.

    A PUB socket does not report its subscribers, so send prompts until one of their events arrives.
    """
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(TOPIC)
        subscriber.connect(source["endpoint"])
        probes = 0
        while not probes or not await subscriber.poll(20):
            assert probes < 500
            await complete(sim, list(range(10_000_000 + 40 * probes, 10_000_040 + 40 * probes)))
            probes += 1
        while (await batch(subscriber))[0] < probes - 1:
            pass
        yield subscriber


async def batch(subscriber: zmq.asyncio.Socket) -> tuple[int, list[dict[str, Any]]]:
    topic, seq, payload = await asyncio.wait_for(subscriber.recv_multipart(), 10)
    assert topic == TOPIC.encode()
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    return int.from_bytes(seq, "big"), events


async def complete(sim: Running, ids: list[int], **fields: Any) -> int:
    body = {"prompt": ids, "max_tokens": 1, **fields}
    answer = await sim.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def test_stored_blocks_have_hashes_parents_and_tokens() -> None:
    ids = list(range(1000, 1000 + 100))
    hashes = block_hashes(np.array(ids, np.uint32), 16)
    async with publishing() as (sim, source), subscribed(sim, source) as subscriber:
        await complete(sim, ids[:50])
        number, (first,) = await batch(subscriber)
        assert first["type"] == "BlockStored"
        assert first["block_hashes"] == hashes[:3]
        assert first["parent_block_hash"] is None
        assert first["token_ids"] == ids[:48]
        assert (first["block_size"], first["medium"]) == (16, "GPU")
        assert first["extra_keys"] == [None] * 3
        assert await complete(sim, ids[:50]) == 48  # sends no event
        await complete(sim, ids)
        following, (second,) = await batch(subscriber)
        assert following == number + 1
        assert second["block_hashes"] == hashes[3:]
        assert second["parent_block_hash"] == hashes[2]
        assert second["token_ids"] == ids[48:96]


async def test_a_salt_changes_the_hashes_and_is_part_of_the_first_block() -> None:
    ids = list(range(40))
    async with publishing() as (sim, source), subscribed(sim, source) as subscriber:
        await complete(sim, ids, cache_salt="pepper")
        _, (stored,) = await batch(subscriber)
        assert stored["extra_keys"] == [["pepper"], None]
        assert stored["block_hashes"] == block_hashes(np.array(ids, np.uint32), 16, salt="pepper")


async def test_a_reader_that_follows_all_events_knows_the_cache() -> None:
    """In a cache of 20 blocks, blocks come and go; those that remain are the next hits."""
    async with publishing(num_blocks=20) as (sim, source), subscribed(sim, source) as subscriber:
        held: set[int] = set()
        removed = 0
        for round_ in range(6):
            start = 1000 * round_
            await complete(sim, list(range(start, start + 100)))
            _, events = await batch(subscriber)
            for event in events:
                if event["type"] == "BlockStored":
                    held |= set(event["block_hashes"])
                else:
                    removed += len(event["block_hashes"])
                    held -= set(event["block_hashes"])
            assert len(held) <= 20
        assert removed > 0
        for round_ in (5, 0):  # the newest prompt is cached, the oldest is not
            ids = list(range(1000 * round_, 1000 * round_ + 100))
            hashes = block_hashes(np.array(ids, np.uint32), 16)
            known = next((i for i, key in enumerate(hashes) if key not in held), len(hashes))
            assert await complete(sim, ids) == 16 * known
            assert known == (6 if round_ == 5 else 0)


async def test_a_replay_repeats_the_kept_batches_and_marks_the_end() -> None:
    async with publishing() as (sim, source):
        for start in (0, 100, 200):
            await complete(sim, list(range(start, start + 40)))
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(source["replay_endpoint"])
            await dealer.send_multipart([b"nonsense"])  # invalid, so it is ignored
            await dealer.send_multipart([b"", (1).to_bytes(8, "big")])
            got = []
            while True:
                empty, _, seq, payload = await asyncio.wait_for(dealer.recv_multipart(), 10)
                assert empty == b""
                if seq == b"\xff" * 8:
                    assert payload == b""
                    break
                got.append((int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload)[1]))
        assert [number for number, _ in got] == [1, 2]
        assert [events[0]["token_ids"][0] for _, events in got] == [100, 200]


async def test_a_crash_restarts_the_batch_numbers() -> None:
    async with publishing() as (sim, source), subscribed(sim, source) as subscriber:
        await complete(sim, list(range(40)))
        assert (await batch(subscriber))[0] > 0
        sim.endpoint.serving.restart()
        await complete(sim, list(range(40)))
        number, (stored,) = await batch(subscriber)
        assert (number, len(stored["block_hashes"])) == (0, 2)
