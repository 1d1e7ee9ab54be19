"""Hostile peers lose at most their own connection, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from contextlib import AsyncExitStack

import pytest
from fuzz.written import Written
from h2_peers import HEADERS, PREFACE, Echo, Peer, Served, frame, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from jh2 import events
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.exceptions import ProtocolError
from jh2.hpack import Encoder

from laar.server.h2 import H2Server, connection
from laar.server.h2.framing import Code
from laar.server.h2.guard import BufferShare
from support import eventually
from support.exploring import examples

pytestmark = pytest.mark.slow

DATA, HEADER, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


@pytest.fixture
async def served():
    async with serving() as running:
        yield running


async def is_well(served):
    """Assert that another peer is served."""
    async with Peer.to(served) as peer:
        peer.call(1)
        peer.message(1, b"well?", end=True)
        await peer.flush()
        data = await peer.until(lambda e: isinstance(e, events.DataReceived))
        assert data.data == b"\0\0\0\0\5well?"
        ended = await peer.until(lambda e: isinstance(e, events.TrailersReceived))
        assert dict(ended.headers)[b"grpc-status"] == b"0"


async def nothing_left(served):
    await eventually(
        lambda: served.count("closed") == served.count("open"), what="the ends of all calls"
    )
    if isinstance(served.server, H2Server):
        await eventually(lambda: not served.server.connections, what="the connections' ends")


async def ends(served, *data, greet=True):
    """Send bytes after the greeting; assert that only this connection ends.

    gRPC's core tolerates some of them.
    """
    async with Peer.to(served, greet=greet) as peer:
        for one in data:
            await peer.send(one)
        if isinstance(served.server, H2Server):
            await peer.closed()
    await is_well(served)
    await nothing_left(served)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"x" * 500,  # a TLS ClientHello
        PREFACE[:-1] + b"X",
        PREFACE + frame(DATA, 0, 1, b"x"),
        PREFACE + frame(SETTINGS, 0, 0, b"x" * 5),
        PREFACE + frame(SETTINGS, 0, 3, b""),
    ],
)
async def test_a_connection_without_http2_is_closed(served, data):
    await ends(served, data, greet=False)


async def test_tls_at_a_plaintext_port_is_named_in_the_log_but_not_each_time(caplog):
    async with serving() as served:
        for _ in range(3):
            async with Peer.to(served, greet=False) as peer:
                await peer.send(b"\x16\x03\x01\x02\0\x01")
                await peer.closed()
    assert caplog.text.count("the peer speaks TLS, and this port does not") == 1


async def test_a_silent_peers_connection_is_closed(monkeypatch, caplog):
    monkeypatch.setattr(connection, "GREETING_S", 0.1)
    async with serving() as served, Peer.to(served, greet=False) as peer:
        await peer.send(PREFACE[:10])
        await peer.closed()
        await nothing_left(served)
    assert "sent no preface within 0.1 s" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, 0, 1, length=(1 << 24) - 1),
        frame(HEADER, 0x4, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),  # not HPACK
        frame(HEADER, 0x4, 1, b"\x80"),  # index 0 does not exist
        frame(HEADER, 0x4, 2, b"\x82"),  # an even stream number, which only servers use
        frame(CONTINUATION, 0x4, 1, b"\x82"),
        # A frame in the middle of a header block.
        frame(HEADER, 0, 1, b"\x82") + frame(PING, 0, 0, b"12345678"),
        frame(WINDOW, 0, 0, b"\0\0\0\0"),
        frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2,  # overflows the window
        frame(5, 0x4, 1, b"\0\0\0\2"),  # clients may not push
        frame(RST, 0, 7, b"\0\0\0\0"),  # a stream never opened
        frame(PING, 0, 0, b"short"),
        frame(DATA, 0x8, 1, b"\xff"),  # more padding than the frame has bytes
    ],
)
async def test_broken_frames_end_their_connection(served, data):
    await ends(served, data)


@pytest.mark.parametrize(
    "one",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0"),
        frame(WINDOW, 0, 0, b"\0\0\0\1"),
        frame(0x20, 0, 0, b"unknown"),
        frame(2, 0, 1, b"\0\0\0\3\1"),
    ],
)
async def test_floods_end_their_connection(served, one):
    await ends(served, one * 60_000)


async def test_endless_header_blocks_are_cut_off(served):
    await ends(served, frame(HEADER, 0, 1, b"\x82"), frame(CONTINUATION, 0, 1, b"") * 100)
    await ends(served, frame(HEADER, 0, 1, b"\x82"), frame(CONTINUATION, 0, 1, b"x" * 16384) * 8)


async def test_metadata_that_expands_too_much_is_refused(served):
    """One long value in the table, referenced repeatedly (HPACK bomb)."""
    literal = b"\x40\x01a\x7f\x81\x1e" + b"v" * 4000  # entered in the table
    await ends(served, frame(HEADER, 0x4, 1, literal + b"\xbe" * 12_000))
    first = frame(HEADER, 0x4, 1, bytes(Encoder().encode(HEADERS)))
    await ends(served, first, frame(HEADER, 0x4, 3, literal + b"\xbe" * 12_000))


async def test_long_metadata_fails_only_its_call(served):
    async with Peer.to(served) as peer:
        peer.call(1, headers=[*HEADERS, ("x-long", "v" * 20_000)])
        await peer.flush()
        answer = await peer.until(lambda e: isinstance(e, events.ResponseReceived))
        assert dict(answer.headers)[b"grpc-status"] == b"%d" % Code.RESOURCE_EXHAUSTED
        peer.call(3)
        peer.message(3, b"next", end=True)
        await peer.flush()
        assert await peer.until(lambda e: isinstance(e, events.DataReceived))


@pytest.mark.parametrize("pad_bytes", [None, 10])
async def test_rapid_resets_end_their_connection(served, pad_bytes):
    async with Peer.to(served) as peer:
        for number in range(1, 4001, 2):
            peer.call(number)
            if pad_bytes is not None:  # padding is not a message
                peer.h2.send_data(number, b"", pad_length=pad_bytes)
            peer.h2.reset_stream(number)
        await peer.flush()
        await peer.closed()
    await nothing_left(served)
    await is_well(served)


async def test_streams_reset_after_their_answer_are_normal_for_envoy(served):
    async with Peer.to(served) as peer:
        for number in range(1, 6001, 2):
            peer.call(number)
            peer.message(number, b"a")
            await peer.flush()
            await peer.until(
                lambda e, n=number: isinstance(e, events.DataReceived) and e.stream_id == n
            )
            peer.events.clear()
            peer.h2.reset_stream(number)
        await peer.flush()
        await eventually(lambda: served.count("closed") == 3000, what="the calls' ends")
        assert len(next(iter(served.server.connections)).h2.streams) < 200


async def test_streams_above_the_limit_are_refused_and_may_be_retried():
    async with serving(max_streams=3) as served, Peer.to(served) as peer:
        for number in (1, 3, 5, 7):
            peer.call(number)
        await peer.flush()
        refused = await peer.until(lambda e: isinstance(e, events.StreamReset))
        assert (refused.stream_id, refused.error_code) == (7, 7)  # REFUSED_STREAM
        peer.h2.reset_stream(1)
        peer.call(9)
        peer.message(9, b"now", end=True)
        await peer.flush()
        assert await peer.until(lambda e: isinstance(e, events.DataReceived))


async def test_a_call_from_a_half_closed_or_cut_stream_ends(served):
    async with Peer.to(served) as peer:
        peer.call(1, end=True)  # no message at all
        peer.call(3)
        peer.h2.send_data(3, b"\0\0\0\0\x09half", end_stream=True)
        await peer.flush()
        for number, status in ((1, Code.OK), (3, Code.INTERNAL)):
            ended = await peer.until(
                lambda e, n=number: (
                    isinstance(e, events.ResponseReceived | events.TrailersReceived)
                    and e.stream_id == n
                    and b"grpc-status" in dict(e.headers)
                )
            )
            assert dict(ended.headers)[b"grpc-status"] == b"%d" % status


async def test_a_whole_stream_in_one_read_is_handled_in_order(served):
    async with Peer.to(served) as peer:
        peer.call(1)
        peer.message(1, b"a")
        peer.message(1, b"b")
        peer.h2.reset_stream(1)
        await peer.flush()
        await eventually(lambda: served.count("closed") == 1, what="the end")
        assert [kind for kind, _ in served.seen] == ["open", "message", "message", "closed"]
        assert served.server.connections


async def test_a_closed_window_holds_the_answers_until_it_opens(served):
    async with Peer.to(served, window=0) as peer:
        peer.call(1)
        peer.message(1, b"many100000")
        await peer.flush()
        await peer.until(lambda e: isinstance(e, events.ResponseReceived))
        await eventually(lambda: served.calls[0]._out_bytes > 0, what="the answer to wait")
        got = 0
        while got < 100_005:
            peer.h2.increment_flow_control_window(7000, 1)
            peer.h2.increment_flow_control_window(7000)
            await peer.flush()
            data = await peer.until(lambda e: isinstance(e, events.DataReceived))
            got += len(data.data)
            peer.events.remove(data)
        assert got == 100_005


async def test_messages_of_a_peer_that_reads_no_answers_are_not_handled(served):
    """The number of waiting messages is bounded, and another stream continues."""
    async with Peer.to(served, window=0) as peer:
        peer.call(1)
        sent = 0
        for _ in range(40):
            peer.message(1, b"many200000")
            sent += 1
        await peer.flush()
        await eventually(lambda: served.count("message") > 0, what="the first message")
        await is_well(served)
        assert served.calls[0]._out_bytes < 2 << 20
        assert served.count("message") < sent


async def test_a_peer_that_does_not_read_its_socket_does_not_fill_the_memory(served):
    async with Peer.to(served) as peer:
        peer.stop_reading()
        peer.call(1)
        peer.h2.increment_flow_control_window(1 << 30, 1)
        for _ in range(100):
            peer.message(1, b"many1000000")
        await peer.flush()
        await eventually(lambda: served.count("message") > 1, what="the first messages")
        (held,) = served.server.connections
        await is_well(served)
        assert held._transport.get_write_buffer_size() < 2 << 20
        assert served.calls[0]._out_bytes < 3 << 20
        assert served.count("message") < 50


async def test_a_peer_that_pings_and_never_reads_is_cut_off(served):
    async with Peer.to(served) as peer:
        peer.writer.transport.pause_reading()
        peer.messages(range(1, 3000, 2), b"many65000")
        await peer.flush()
        (held,) = served.server.connections
        await peer.send(frame(PING, 0, 0, b"12345678") * 60_000)
        await eventually(
            lambda: held not in served.server.connections, what="the connection to be cut"
        )
        await is_well(served)


async def test_a_silent_peer_is_pinged_and_then_aborted(monkeypatch, caplog):
    monkeypatch.setattr(connection, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(connection, "ALIVE_S", 0.3)
    async with serving() as served:
        async with Peer.to(served) as answering, Peer.to(served) as silent:
            silent.call(1)
            await silent.flush()
            reading = asyncio.create_task(answering.until(lambda _e: False))
            await eventually(lambda: served.count("closed") == 1, what="the silent peer's end")
            assert len(served.server.connections) == 1
            assert not reading.done()
        await reading
    assert "the peer is silent" in caplog.text


async def test_an_idle_envoy_may_ping_twice_a_second(served):
    async with Peer.to(served) as peer:
        for number in range(6):
            await asyncio.sleep(0.3)
            peer.h2.ping(b"%08d" % number)
            await peer.flush()
            await peer.until(
                lambda e, n=number: (
                    isinstance(e, events.PingAckReceived) and e.ping_data == b"%08d" % n
                )
            )
        assert not any(isinstance(e, events.ConnectionTerminated) for e in peer.events)


async def test_a_goaway_lets_open_calls_finish(served):
    async with Peer.to(served) as peer:
        peer.call(1)
        await peer.flush()
        await peer.send(frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0"))
        peer.message(1, b"still", end=True)
        await peer.flush()
        assert await peer.until(lambda e: isinstance(e, events.DataReceived))
        assert await peer.until(lambda e: isinstance(e, events.TrailersReceived))
    await nothing_left(served)


async def test_a_drained_connection_stays_open_until_the_peer_has_read_it(served, monkeypatch):
    # Otherwise a peer that resets ended calls, as Envoy does, would lose unread answers.
    monkeypatch.setattr(connection, "LINGER_S", 20.0)
    async with Peer.to(served) as peer:
        peer.call(1)
        peer.message(1, b"a")
        await peer.flush()
        assert await peer.until(lambda e: isinstance(e, events.DataReceived))
        stopping = asyncio.create_task(served.server.stop(20.0))
        await peer.send(frame(PING, 1, 0, b"laar-bye"))
        await peer.send(frame(DATA, 1, 1, b""))
        await peer.closed()
        await peer.send(frame(RST, 0, 1, b"\0\0\0\0"))
        assert not (await asyncio.wait([stopping], timeout=0.1))[0]
        peer.writer.close()
        await stopping


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ((":path", "nothing"), Code.UNIMPLEMENTED),
        ((":method", "GET"), Code.UNIMPLEMENTED),
        (("content-type", "text/plain"), Code.UNIMPLEMENTED),
    ],
)
async def test_an_invalid_call_gets_its_status_in_one_frame(served, change, status):
    async with Peer.to(served) as peer:
        peer.call(1, headers=list({**dict(HEADERS), change[0]: change[1]}.items()))
        await peer.flush()
        answer = await peer.until(lambda e: isinstance(e, events.ResponseReceived))
        headers = dict(answer.headers)
        assert headers[b":status"] == b"200"
        assert headers[b"grpc-status"] == b"%d" % status
        assert answer.stream_ended


async def test_unfinished_messages_of_all_streams_share_a_limit(served):
    served.server.held_bytes = BufferShare(200_000)
    async with Peer.to(served) as peer:
        await peer.until(lambda e: isinstance(e, events.WindowUpdated))
        numbers = range(1, 41, 2)
        for number in numbers:
            peer.call(number)
            peer.h2.send_data(number, b"\0\0\0\x20\0" + b"x" * 3000)  # of 8,192 bytes
        await peer.flush()
        await eventually(lambda: served.count("open") == 20, what="the calls")
        (held,) = served.server.connections
        await eventually(lambda: held._held_bytes >= 60_000, what="the unfinished messages")
        for number in numbers:
            with contextlib.suppress(ProtocolError):  # the server may have reset the stream
                peer.h2.send_data(number, b"x" * 3000)
                await peer.flush()
        refused = await peer.until(
            lambda e: isinstance(e, events.ResponseReceived) and e.stream_id == 39
        )
        assert dict(refused.headers)[b"grpc-status"] == b"%d" % Code.RESOURCE_EXHAUSTED
        peer.h2.send_data(1, b"x" * 2192)
        await peer.flush()
        assert await peer.until(lambda e: isinstance(e, events.DataReceived) and e.stream_id == 1)


@pytest.mark.parametrize("reads", [True, False])
async def test_unread_answers_of_all_streams_share_a_limit(served, reads):
    """The peer either opens no windows or does not read its socket."""
    served.server.held_bytes = BufferShare(20_000_000)
    async with Peer.to(served, window=0 if reads else 1 << 30) as peer:
        if not reads:
            peer.stop_reading()
        peer.messages(range(1, 401, 2), b"many400000")
        await peer.flush()
        await eventually(lambda: served.count("closed") > 100, what="the ends of most calls")
        assert sum(call._out_bytes for call in served.calls) < 30_000_000  # of 80 MB
        (held,) = served.server.connections
        assert 5_000_000 < held._held_bytes < 12_000_000
        await is_well(served)
    await nothing_left(served)
    assert served.server.held_bytes.take(0, 0)
    assert served.server.held_bytes.take(20_000_000, 0)


async def test_an_ended_call_whose_answer_is_over_the_limit_gets_an_error(served, monkeypatch):
    def receive(self, _message):
        self.call.send(bytes(400_000))
        self.call.end()

    monkeypatch.setattr(Echo, "receive", receive)
    monkeypatch.setattr(connection.Connection, "turn_s", math.inf)
    served.server.held_bytes = BufferShare(20_000_000)
    async with Peer.to(served, window=0) as peer:
        peer.messages(range(1, 101, 2), b"hello")
        await peer.flush()
        ended = await peer.until(
            lambda e: isinstance(e, events.TrailersReceived) and e.stream_id == 99
        )
        assert dict(ended.headers)[b"grpc-status"] == b"%d" % Code.RESOURCE_EXHAUSTED


async def test_a_handler_is_not_closed_while_it_sends(served, monkeypatch):
    """Whatever it begins after that, such as a wait, would never end."""
    closed_within = []

    def receive(self, _message):
        self.call.send(bytes(400_000))
        closed_within.append(self.is_closed)

    monkeypatch.setattr(Echo, "receive", receive)
    monkeypatch.setattr(Echo, "is_closed", False, raising=False)
    monkeypatch.setattr(Echo, "closed", lambda self: setattr(self, "is_closed", True))
    served.server.held_bytes = BufferShare(2_000_000)
    async with Peer.to(served, window=1 << 30) as peer:
        peer.stop_reading()
        for number in range(1, 201, 2):
            peer.call(number)
            peer.message(number, b"hello")
            await peer.flush()
            await asyncio.sleep(0)
        await eventually(lambda: len(closed_within) == 100, what="all messages")
    assert not any(closed_within)


async def test_answers_that_a_window_update_frees_are_written_in_turns(served, monkeypatch):
    async with Peer.to(served, window=0) as peer:
        peer.messages(range(1, 401, 2), b"hello")
        await peer.flush()
        await eventually(lambda: served.count("message") == 200, what="the answers")

        def unsent():
            return sum(call._out_bytes > 0 for call in served.calls)

        await eventually(lambda: unsent() == 200, what="the answers to wait")
        monkeypatch.setattr(connection.Connection, "turn_s", 0.0)
        await peer.send(frame(SETTINGS, 0, 0, b"\0\4\0\0\1\0"))
        steps = [unsent()]
        while steps[-1]:
            await asyncio.sleep(0)
            steps.append(unsent())
        assert max(before - after for before, after in itertools.pairwise(steps)) < 10


async def test_timeouts_of_many_slow_messages_are_extended_in_turns(served, monkeypatch):
    extended = []
    monkeypatch.setattr(Echo, "reassure", lambda _self, **_: extended.append(1), raising=False)
    async with Peer.to(served) as peer:
        for number in range(1, 401, 2):
            peer.call(number)
        await peer.flush()
        await eventually(lambda: served.count("open") == 200, what="the calls")
        monkeypatch.setattr(connection, "SLOW_S", -1.0)
        monkeypatch.setattr(connection.Connection, "turn_s", 1e-5)
        await peer.send(frame(PING, 0, 0, b"12345678"))
        await peer.until(lambda e: isinstance(e, events.PingAckReceived))
        assert len(extended) < 100


def spoken():
    """Return the bytes that a well-behaved peer sends."""
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    for number in (1, 3, 5):
        h2.send_headers(number, HEADERS)
        h2.send_data(number, b"\0\0\0\0\3abc\0\0\0\0\1d")
    h2.ping(b"12345678")
    h2.reset_stream(1)
    h2.increment_flow_control_window(1000)
    h2.end_stream(3)
    return h2.data_to_send()


SPOKEN = spoken()
changes = st.lists(
    st.tuples(st.integers(0, len(SPOKEN) - 1), st.binary(max_size=12), st.integers(0, 12)),
    max_size=6,
)


@settings(max_examples=examples(300))
@given(changes, st.lists(st.integers(0, len(SPOKEN)), max_size=12))
def test_arbitrary_bytes_end_only_their_connection(changed, cuts):
    """Insert, remove or overwrite bytes: no exception escapes, and all calls end."""
    data = SPOKEN
    for at, put, taken in changed:
        data = data[:at] + put + data[at + taken :]
    marks = sorted({0, len(data), *(c for c in cuts if c < len(data))})

    async def speak():
        server = H2Server(longest_bytes=1000)
        served = Served(server, 0)
        server.add_method("test.Test", "Echo", served.begin)
        one = connection.Connection(server)
        one.turn_s = math.inf
        one.connection_made(Written())
        for start, stop in itertools.pairwise(marks):
            one.data_received(data[start:stop])
        one.connection_lost(None)
        assert served.count("closed") == served.count("open")
        assert not server.connections
        assert not one.blocked
        assert one._held_bytes == 0

    with asyncio.Runner() as runner:
        runner.run(speak())


async def test_a_new_peer_is_served_next_to_peers_at_their_limits(served):
    served.server.held_bytes, served.server.open_calls = BufferShare(100_000), BufferShare(100)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            peer = await stack.enter_async_context(Peer.to(served))
            for number in range(1, 201, 2):
                peer.call(number)
                peer.h2.send_data(number, b"\0\0\0\x20\0" + b"x" * 600)  # of 8,192 bytes
            await peer.flush()
            await peer.until(lambda e: isinstance(e, events.StreamReset))
        await is_well(served)
        assert served.server.held_bytes._taken <= 100_000
        assert served.server.open_calls._taken <= 100
    await nothing_left(served)
    assert served.server.held_bytes._taken == served.server.open_calls._taken == 0


async def test_a_call_continues_while_thousands_from_another_peer_are_ended(served, monkeypatch):
    monkeypatch.setattr(connection.Connection, "turn_s", 1e-6)
    async with Peer.to(served) as peer:
        for number in range(1, 2001, 2):
            peer.call(number)
        await peer.flush()
        await eventually(lambda: served.count("open") == 1000, what="the calls")
    await is_well(served)
    await nothing_left(served)
