"""A real gRPC client."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from h2_peers import Echo, serving

from support import eventually


@pytest.fixture
async def served():
    async with serving() as running:
        yield running


@pytest.fixture
async def channel(served):
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options) as opened:
        yield opened


def echo(channel, request=None, **options):
    return channel.stream_stream("/test.Test/Echo")(request, **options)


@pytest.mark.parametrize("size", [0, 1, 5, 16_379, 16_384, 65_535, 1 << 20, 48 << 20])
async def test_a_message_of_any_length_comes_back_whole(served, channel, size):
    call = echo(channel)
    sent = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for _ in range(2):
        await call.write(sent)
        assert await call.read() == sent
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await eventually(lambda: served.count("closed") == 1, what="the call's end")


async def test_hundreds_of_concurrent_streams_get_their_own_messages(served, channel):
    async def one(number):
        call = echo(channel)
        for turn in range(5):
            text = f"{number} {turn} ".encode() * (number * 7 + 1)
            await call.write(text)
            assert await call.read() == text
        await call.done_writing()
        return await call.code()

    codes = await asyncio.gather(*(one(number) for number in range(300)))
    assert set(codes) == {grpc.StatusCode.OK}
    await eventually(lambda: served.count("closed") == 300, what="the calls' ends")


async def test_a_call_that_is_cancelled_ends_its_handler(served, channel):
    call = echo(channel)
    await call.write(b"a")
    await call.read()
    call.cancel()
    await eventually(lambda: served.count("closed") == 1, what="the call's end")
    assert served.count("half-closed") == 0


async def test_a_channel_that_closes_ends_all_its_calls(served, channel):
    calls = [echo(channel) for _ in range(20)]
    for call in calls:
        await call.write(b"a")
        await call.read()
    await channel.close()
    await eventually(lambda: served.count("closed") == 20, what="the calls' ends")


async def test_a_deadline_ends_the_call_on_both_sides(served, channel):
    async def silent():
        yield b"silent"
        await asyncio.Event().wait()

    async def arrives():
        call = echo(channel, silent(), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return served.count("message") > 0

    await eventually(arrives, what="a call that arrives before its deadline")
    opened = served.count("open")
    await eventually(lambda: served.count("closed") == opened, what="the call's end")


async def test_the_peers_timeout_is_extended_for_a_first_message_that_arrives_slowly(
    served, channel, monkeypatch
):
    extended = asyncio.Event()
    monkeypatch.setattr(Echo, "reassure", lambda _self, **_: extended.set())
    monkeypatch.setattr("laar.server.h2.connection.SLOW_S", 0.01)
    call = echo(channel)
    await eventually(lambda: served.count("open") == 1, what="the call")
    await asyncio.sleep(0.02)
    await echo(channel).write(b"another")  # the server looks at waiting messages when it reads
    await asyncio.wait_for(extended.wait(), 60)
    await call.write(b"a")
    assert await call.read() == b"a"


async def test_an_unknown_method_is_unimplemented(channel):
    call = channel.stream_stream("/test.Test/Other")()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def refused(channel, size):
    """Send a message; return the server's status."""
    while True:
        call = echo(channel, request=(b"x" * size for _ in range(1)))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        if ended.value.details() != "Internal error from Core":  # the client was still sending
            return ended.value.code()


async def test_a_message_that_is_too_long_or_compressed_is_refused(served, channel):
    assert await refused(channel, (64 << 20) + 1) is grpc.StatusCode.RESOURCE_EXHAUSTED
    options = [("grpc.default_compression_algorithm", 2)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options) as packing:
        assert await refused(packing, 1000) is grpc.StatusCode.UNIMPLEMENTED


async def test_an_error_in_a_handler_ends_only_its_own_call(served, channel, caplog):
    well, ill = echo(channel), echo(channel)
    await well.write(b"a")
    await ill.write(b"fault")
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await ill.read()
    assert ended.value.code() is grpc.StatusCode.UNKNOWN
    assert await well.read() == b"a"
    assert "a call failed" in caplog.text


async def test_messages_wait_for_a_handler_on_hold_and_then_arrive_in_order(served, channel):
    call = echo(channel)
    for message in (b"hold", b"1", b"2"):
        await call.write(message)
    await call.done_writing()
    await eventually(lambda: served.count("message") == 1, what="the first message")
    await eventually(lambda: len(served.calls[0]._inbox) == 2, what="the messages")
    assert served.count("message") == 1
    served.calls[0].release()
    assert [await call.read() for _ in range(3)] == [b"1", b"2", grpc.aio.EOF]


async def test_a_drain_serves_open_calls_and_does_not_lose_new_ones(served, channel):
    old = echo(channel)
    await old.write(b"a")
    await old.read()
    stopping = asyncio.create_task(served.server.stop(10.0))
    await asyncio.sleep(0)  # it refuses new calls from here
    await old.write(b"b")
    assert await old.read() == b"b"
    await old.done_writing()
    assert await old.code() is grpc.StatusCode.OK
    await stopping
    assert served.count("closed") == 1


async def test_after_the_grace_period_open_calls_are_cut_off(served, channel):
    call = echo(channel)
    await call.write(b"a")
    await call.read()
    await served.server.stop(0.1)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    await eventually(lambda: served.count("closed") == 1, what="the call's end")
