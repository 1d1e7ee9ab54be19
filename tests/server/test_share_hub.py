"""The hub that the workers of one machine share by."""

from __future__ import annotations

import asyncio

from laar.server.sharing.hub import Hub, HubClient
from support import eventually

KEY = b"k" * 16


async def received(client, wanted):
    """The batches that a client gets, until it has `wanted` of them."""
    got = []
    async for batches in client.receive():
        got += [each.data for each in batches]
        if len(got) >= wanted:
            return got
    return got


async def test_a_batch_that_is_sent_while_a_snapshot_is_written_is_kept(tmp_path):
    hub = Hub(tmp_path / "hub", history_s=60.0, interval_s=0.05)
    await hub.start()
    writer, other, later = (HubClient(tmp_path / "hub") for _ in range(3))
    try:
        await writer.open(KEY, starting=True)
        await other.open(KEY, starting=True)
        await other.send([b"before"])
        reading = asyncio.create_task(received(writer, 99))
        await eventually(writer.is_my_turn, what="a turn")
        await other.send([b"during"])
        await eventually(lambda: hub._history[-1][1] == b"during", what="the batch at the hub")
        await writer.put_snapshot(b"of the time before")
        await eventually(lambda: hub._snapshot == b"of the time before", what="the snapshot")
        begun = await later.open(KEY, starting=True)
        assert begun.snapshot == b"of the time before"
        async with asyncio.timeout(5.0):
            assert await received(later, 1) == [b"during"]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    finally:
        for client in (writer, other, later):
            await client.close()
        await hub.stop()


async def test_a_worker_that_starts_is_sent_much_and_is_not_cut_off_for_it(tmp_path):
    hub = Hub(tmp_path / "hub", history_s=60.0, interval_s=60.0, snapshot=b"s" * (20 << 20))
    await hub.start()
    writer, later = (HubClient(tmp_path / "hub") for _ in range(2))
    try:
        await writer.open(KEY, starting=False)
        batches = [bytes(1 << 20)] * 20
        for batch in batches:
            await writer.send([batch])
        await eventually(lambda: len(hub._history) == 20, what="the batches at the hub")
        opening = asyncio.create_task(later.open(KEY, starting=True))
        while len(hub._workers) < 2:  # noqa: ASYNC110 - before the worker has read anything
            await asyncio.sleep(0)
        hub._pass_on(None, b"now")  # while the worker reads the snapshot
        assert len((await opening).snapshot) == 20 << 20
        async with asyncio.timeout(20.0):
            assert await received(later, 21) == [*batches, b"now"]
    finally:
        for client in (writer, later):
            await client.close()
        await hub.stop()
