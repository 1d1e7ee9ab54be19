"""Frames that bypass the HTTP/2 library have the same effects as through it."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from typing import ClassVar

import pytest
from fuzz.written import Written, by_the_library
from h2_peers import HEADERS, PREFACE, Echo, Peer, Served, frame, framed, serving
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jh2 import events
from jh2.hpack import Decoder, Encoder

from laar.server.h2 import H2Server
from laar.server.h2.connection import Connection
from laar.server.h2.guard import Budget
from laar.server.h2.library import CONNECTION_WINDOW_BYTES
from support import eventually
from support.exploring import examples

DATA, HEADER, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END, WHOLE, PADDED = 0x1, 0x4, 0x8
DRAIN = b"drain"  # not sent: drains the server


async def _play(reads, by_library, max_streams):
    server = H2Server(longest_bytes=1 << 20, max_streams=max_streams)
    served = Served(server, 0)
    server.add_method("test.Test", "Echo", served.begin)
    connection, socket = Connection(server), Written()
    connection.turn_s = math.inf
    if by_library:
        by_the_library(connection)
    connection._resets, connection.guard._idle = Budget(3, 0, 0.0), Budget(40, 0, 0.0)
    connection.connection_made(socket)
    for read in (PREFACE, frame(SETTINGS), *reads):
        if socket.is_closing():
            break
        if read is DRAIN:
            connection.drain()
        else:
            connection.data_received(read)
    h2 = connection.h2
    # The two ways may return credit at different times, so count what is still owed, too.
    owed = Counter({call.stream_id: call._owed_bytes for call in served.calls})
    owed[0] = CONNECTION_WINDOW_BYTES - h2.inbound_flow_control_window
    written, granted = split(socket.data, table_sizes([frame(SETTINGS), *reads]))
    caused = {"seen": served.seen, "closed": socket.is_closing(), "written": written}
    if socket.is_closing():
        return caused
    windows = {0: (h2.outbound_flow_control_window, h2.inbound_flow_control_window + owed[0])}
    for number, stream in h2.streams.items():
        if not stream.closed:
            inbound = stream.inbound_flow_control_window + owed[number]
            windows[number] = (stream.outbound_flow_control_window, inbound)
    return caused | {
        "windows": windows,
        "given back": {number: granted[number] + owed[number] for number in windows},
        "streams": {number: known_of(stream) for number, stream in h2.streams.items()},
        "highest": h2.highest_inbound_stream_id,
        "calls": sorted(connection._calls),
        "budgets": (connection._resets._left, connection.guard._idle._left),
    }


def known_of(stream):
    """Return the library's state of a stream except its windows."""
    return vars(stream.state_machine) | {"length": stream._expected_content_length}


def table_sizes(reads):
    """Return the header table size in each of the peer's SETTINGS; None in other settings."""
    data, at, sizes = b"".join(read for read in reads if read is not DRAIN), 0, []
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        name, value = data[at + 9 : at + 11], data[at + 11 : end]
        if data[at + 3] == SETTINGS:
            sizes.append(int.from_bytes(value, "big") if name == b"\0\1" else None)
        at = end
    return sizes


def split(data, sizes):
    """Return what was written to each stream, and the window credit given to each.

    The result does not depend on how DATA was cut and headers were compressed. `sizes` are those of
    the peer's header table: the decoder fails unless headers follow each acknowledged change.
    """
    written, granted, at = {}, Counter(), 0
    decoder, sizes = Decoder(), iter(sizes)
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        kind, stream, payload = data[at + 3], int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
        said = written.setdefault(stream, [])
        if kind == SETTINGS and data[at + 4] and (size := next(sizes)) is not None:
            decoder.max_allowed_table_size = size
        if kind == WINDOW:
            granted[stream] += int.from_bytes(data[payload:end], "big")
        elif kind == DATA and said and said[-1][0] == DATA:
            said[-1] = (DATA, said[-1][1] + data[payload:end])
        elif kind == HEADER:
            said.append((kind, data[at + 4], decoder.decode(data[payload:end], raw=True)))
        else:
            said.append((kind, data[payload:end]))
        at = end
    assert at == len(data)
    return written, granted


def play(reads, *, by_library, max_streams=5):
    with asyncio.Runner() as runner:
        return runner.run(_play(reads, by_library, max_streams))


def opened(number, *more, flags=0x4):
    block = Encoder().encode([*HEADERS, *more])  # a new encoder: refers to no earlier headers
    return frame(HEADER, flags, number, bytes(block))


PAYLOADS = [
    *map(framed, (b"", b"abc", b"hold", b"silent", b"many90000", b"fault")),
    framed(b"x" * 100_000),
    framed(b"y" * 9000) * 3,
    framed(b"z" * 400_000)[:200_000],
    b"\0\0\0",
    b"\1\0\0\0\0",
    b"\0\xff\xff\xff\xff",
    b"",
    b"x" * (1 << 18),
]
SMALL_TABLE = frame(SETTINGS, 0, 0, b"\0\1\0\0\0\x64")
numbers = st.sampled_from([1, 1, 3, 5, 7])
some = st.one_of(
    st.builds(lambda n, payload: frame(DATA, 0, n, payload), numbers, st.sampled_from(PAYLOADS)),
    st.builds(
        lambda n, payload: frame(DATA, 0, n, payload), st.just(1), st.sampled_from(PAYLOADS[:9])
    ),
    st.builds(lambda n: frame(DATA, END, n, framed(b"end")), numbers),
    st.builds(lambda n: frame(DATA, PADDED, n, b"\3" + framed(b"pad") + b"\0" * 3), numbers),
    st.builds(lambda n, flags: opened(n, flags=flags), numbers, st.sampled_from([4, 4, 0, 5])),
    st.builds(lambda n: opened(n, ("content-length", "8")), numbers),
    st.builds(lambda n: frame(CONTINUATION, WHOLE, n), numbers),
    st.builds(lambda n: frame(RST, 0, n, b"\0\0\0\7"), numbers),
    st.builds(
        lambda n, size: frame(WINDOW, 0, n, size.to_bytes(4, "big")),
        st.sampled_from([0, 1, 3]),
        st.integers(1, 200_000),
    ),
    st.builds(
        lambda code, size: frame(SETTINGS, 0, 0, code + size.to_bytes(4, "big")),
        st.sampled_from([b"\0\1", b"\0\4"]),
        st.sampled_from([0, 1000, 65535, 1 << 20]),
    ),
    st.builds(lambda last: frame(GOAWAY, 0, 0, bytes([0, 0, 0, last, 0, 0, 0, 0])), numbers),
    st.sampled_from([frame(PING, 0, 0, b"12345678"), frame(PING, 1, 0, b"laar-bye"), DRAIN]),
)


def assert_the_same(frames, cuts=()):
    """Assert that frames have the same effects through the library as split and around it."""
    pieces = []
    for one in frames:
        if one is DRAIN:
            pieces.append(one)
            continue
        marks = sorted({0, len(one), *(c % len(one) for c in cuts)})
        pieces += [one[a:b] for a, b in itertools.pairwise(marks)]
    expected = play(frames, by_library=True)
    assert play(pieces, by_library=False) == expected
    return expected


# The report of a counterexample has a large repr.
@pytest.mark.filterwarnings("default:Generating overly large repr")
@settings(max_examples=int(os.environ.get("AROUND_EXAMPLES", examples(150))))
@given(
    st.integers(0, 3), st.lists(some, max_size=15), st.lists(st.integers(0, 1 << 18), max_size=4)
)
@example(3, [frame(DATA, 0, 1, payload) for payload in PAYLOADS[:9]], [5, 11, 100])
@example(3, [frame(DATA, 0, 1, PAYLOADS[1] + PAYLOADS[10])], [17])  # a message, then an invalid one
@example(3, [frame(DATA, 0, 1, PAYLOADS[5] + PAYLOADS[1])], [19])  # an invalid one, then a message
@example(2, [frame(DATA, 0, 1, PAYLOADS[1]), SMALL_TABLE, frame(DATA, 0, 3, PAYLOADS[1])], [])
def test_any_frames_have_the_same_effect_as_through_the_library(count, frames, cuts):
    frames = [*map(opened, (1, 3, 5)[:count]), *frames]
    assert_the_same(frames, cuts)
    if DRAIN in frames:
        return
    marks = sorted({0, len(frames), *(c % (len(frames) or 1) for c in cuts)})
    reads = [b"".join(frames[a:b]) for a, b in itertools.pairwise(marks)]
    around, through = (play(reads, by_library=by, max_streams=99) for by in (False, True))
    assert around["closed"] is through["closed"]
    if not through["closed"]:  # after an error the library loses what it had read
        # The library reads all frames before it counts messages.
        del around["budgets"], through["budgets"]
        assert around == through


@pytest.mark.parametrize(("release", "bypassed"), [("5.0.99", True), ("5.1.0", False)])
def test_only_tested_releases_are_bypassed(release, bypassed):
    code = f"import jh2, jh2.connection as c; jh2.__version__ = {release!r}; "
    code += "" if bypassed else "del c._decode_headers; "
    code += "from laar.server.h2.library import Library; print(Library.bypassed)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == str(bypassed)


HELD = [opened(1), frame(DATA, 0, 1, framed(b"hold"))]
LONG = frame(DATA, 0, 1, framed(b"x" * ((1 << 18) - 5)))


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([*HELD, *[LONG] * 4], 3),  # over the stream's window
        ([opened(1), frame(DATA, 0, 3, b"x")], 1),  # a stream never opened
        ([opened(1), frame(DATA, END, 1), opened(3), frame(DATA, 0, 1, b"x")], None),
        ([opened(1), frame(RST, 0, 1, b"\0\0\0\0"), frame(DATA, 0, 1, b"x")], None),
        ([opened(1, flags=0), frame(DATA, 0, 1, b"x")], 1),  # in the middle of a header block
        ([opened(1), opened(3, flags=0), frame(DATA, 0, 1, b"x")], 1),
        ([opened(1, ("content-length", "5")), frame(DATA, 0, 1, framed(b"abc"))], 1),
        ([opened(1), frame(DATA, PADDED, 1, b"\x09abc")], 1),
        ([opened(1), frame(DATA, 0, 0, b"x")], 1),
        ([opened(1), opened(5), opened(3)], 1),
        ([opened(1), opened(3), opened(2)], 1),
        ([opened(1), opened(3), opened(3)], 1),  # trailers that do not end the stream
        ([opened(1), frame(HEADER, 0x4, 3, b"\x80")], 1),
        ([opened(1), opened(3, *[("x-long", "x" * 3000)] * 30)], 11),
        ([opened(1), frame(RST, 0, 1, b"\0\0\0")], 6),
        ([opened(1), frame(RST, 0, 0, b"\0\0\0\7")], 1),
        ([opened(1), opened(3, flags=0), frame(RST, 0, 1, b"\0\0\0\7")], 1),
        ([opened(1), *[frame(RST, 0, 1, b"\0\0\0\7")] * 2], None),
    ],
)
def test_errors_are_the_same_as_from_the_library(frames, code):
    ended = assert_the_same(frames, [4, 9, 12])
    assert ended["closed"] is (code is not None)
    if code is not None:
        kind, payload = ended["written"][0][-1]
        assert (kind, payload[7]) == (GOAWAY, code)


def test_a_long_message_gets_its_window_replenished_and_arrives_whole():
    message = framed(bytes(900_000))
    sent = [frame(DATA, 0, 1, message[at : at + 16384]) for at in range(0, len(message), 16384)]
    ended = assert_the_same([opened(1), *sent], [7000])
    assert ("message", 900_000) in ended["seen"]
    assert ended["given back"][1] == len(message)


async def test_a_peers_timeout_is_extended_for_each_message_that_arrives_slowly(monkeypatch):
    """This includes a later message of a call whose first message arrived whole."""
    monkeypatch.setattr("laar.server.h2.connection.SLOW_S", -1.0)  # each message is slow
    server = H2Server(longest_bytes=1 << 20)
    served, extended = Served(server, 0), []

    def begin(call):
        handler = served.begin(call)
        handler.reassure = lambda late: extended.append(len(served.seen))
        return handler

    server.add_method("test.Test", "Echo", begin)
    connection, third = Connection(server), framed(b"efg")
    connection.turn_s = 60.0  # on a busy machine, too, it reads all at once
    connection.connection_made(Written())
    pieces = b"\0\0\0", b"\0\3abc", framed(b"d"), third[:6], third[6:], b"\0", b"\0\0\0\0"
    for read in (PREFACE, frame(SETTINGS), opened(1), *(frame(DATA, 0, 1, one) for one in pieces)):
        connection.data_received(read)
    # After the headers, and at the first piece of each message that did not arrive whole.
    assert extended == [1, 3, 4]


class Slow(Echo):
    """Echoes as a busy picker does; streams whose timeouts it extended are in `extended`."""

    extended: ClassVar = set()

    def receive(self, message):
        time.sleep(0.005)
        super().receive(message)

    def reassure(self, *, late=False):
        if late:
            self.extended.add(self.call.stream_id)


async def test_a_burst_is_read_before_its_first_messages_are_handled(monkeypatch):
    """So timeouts are extended in time, and calls that the peer has reset cost nothing."""
    monkeypatch.setattr("laar.server.h2.connection.SLOW_S", 0.05)
    kept, left = range(1, 201, 2), range(201, 401, 2)
    async with serving() as served, Peer.to(served) as peer:
        served.server.add_method("test.Test", "Echo", lambda call: Slow(call, served.seen))
        peer.messages([*kept, *left], b"hello")
        for number in left:  # as an Envoy gives up
            peer.h2.end_stream(number)
            peer.h2.reset_stream(number)
        await peer.flush()
        last = await peer.until(lambda e: isinstance(e, events.DataReceived) and e.stream_id == 199)
        assert last.data == framed(b"hello")
        await eventually(lambda: served.count("closed") >= 100, what="the resets")
    assert served.count("message") < 150
    assert Slow.extended >= set(kept[50:])


async def test_nothing_is_read_while_too_many_messages_wait(monkeypatch):
    monkeypatch.setattr("laar.server.h2.connection.MAX_LATE", 20)
    waiting = {"paused": [], "read": []}

    class Socket(Written):
        def pause_reading(self):
            waiting["paused"].append(len(connection.late))

        def resume_reading(self):
            waiting["read"].append(len(connection.late))

    server = H2Server(longest_bytes=1 << 20)
    seen = []
    server.add_method("test.Test", "Echo", lambda call: Slow(call, seen))
    connection = Connection(server)
    connection.connection_made(Socket())
    numbers = range(1, 101, 2)
    calls = [opened(number) + frame(DATA, 0, number, framed(b"hello")) for number in numbers]
    connection.data_received(PREFACE + frame(SETTINGS) + b"".join(calls))
    await eventually(lambda: sum(kind == "message" for kind, _ in seen) == 50, what="all messages")
    assert max(waiting["paused"]) >= 20
    assert max(waiting["read"]) < 20


async def test_messages_of_urgent_calls_do_not_wait_for_a_burst():
    """A request that is decided does not wait until all others are, so its answer may pass."""
    async with serving() as served, Peer.to(served) as peer:

        def begin(call):
            handler = Slow(call, served.seen)
            handler.urgent = call.stream_id == 1
            return handler

        served.server.add_method("test.Test", "Echo", begin)
        peer.messages(range(1, 201, 2), b"hello")
        peer.message(1, b"answer")
        await peer.flush()
        await eventually(lambda: ("message", 6) in served.seen, what="the answer")
        assert served.count("message") < 20


class Logged(Echo):
    """Echoes; what happens to each stream is kept in `logs`."""

    def __init__(self, call, logs):
        super().__init__(call, logs.setdefault(call.stream_id, []))


WALKED, CREDIT_BYTES = [1, 3, 5], 10_000
RELEASE, ITERATE = "release", "iterate"  # not sent: ends a hold, lets the loop run
ENDS = [frame(DATA, END, 0, framed(b"end")), frame(DATA, END), frame(RST, 0, 0, b"\0\0\0\x08")]


def walked(steps, turn_s):
    """Return what the handlers of streams saw, the credit of those that are open, and held bytes.

    At the end all windows are open, and no stream is on hold.
    """

    async def walk():
        logs, calls, reads = {}, {}, []
        server = H2Server(longest_bytes=1 << 20)
        server.add_method(
            "test.Test", "Echo", lambda call: Logged(calls.setdefault(call.stream_id, call), logs)
        )
        connection, socket = Connection(server), Written()
        connection.turn_s = math.inf
        socket.pause_reading, socket.resume_reading = partial(reads.append, 0), reads.clear
        connection.connection_made(socket)
        for one in (PREFACE, frame(SETTINGS), *map(opened, WALKED)):
            connection.data_received(one)
        connection.turn_s, left = turn_s, {0, *WALKED}
        for number, one in steps:
            if number not in left:
                continue  # an Envoy sends nothing after the end
            if one is RELEASE:
                if calls[number]._holding:  # or handlers do not release
                    calls[number].release()
            elif one is ITERATE:
                await asyncio.sleep(0)
            else:
                connection.data_received(one[:5] + bytes([0, 0, 0, number]) + one[9:])
                left -= {number} if one in ENDS else set()
        for number in left:
            connection.data_received(frame(WINDOW, 0, number, (1 << 30).to_bytes(4, "big")))
        busy = True
        while busy:
            held = [call for call in calls.values() if call._holding and not call._end]
            for call in held:
                call.release()
            await asyncio.sleep(0)
            busy = held or connection.next_turn or connection._pumping
        assert not any(call._inbox for call in calls.values())
        assert not reads
        assert not connection.late
        is_open = {number: call for number, call in calls.items() if not call._end}
        assert all(call._owed_bytes < CREDIT_BYTES for call in is_open.values())
        granted = split(socket.data, [None])[1]
        credit = {number: granted[number] + call._owed_bytes for number, call in is_open.items()}
        return logs, credit, connection._held_bytes

    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr("laar.server.h2.connection.MAX_LATE", 5)
        patch.setattr("laar.server.h2.call._CHOKED_BYTES", 70_000)
        patch.setattr("laar.server.h2.call._CREDIT_BYTES", CREDIT_BYTES)
        return runner.run(asyncio.wait_for(walk(), 10))


walks = st.one_of(
    st.tuples(
        st.sampled_from(WALKED),
        st.sampled_from(
            [
                *(
                    frame(DATA, 0, 0, one)
                    for one in (*PAYLOADS[:6], PAYLOADS[7], b"\0\0", b"\0\0\2ab")
                ),
                *ENDS,
                RELEASE,
            ]
        ),
    ),
    st.tuples(st.just(0), st.sampled_from([ITERATE, frame(WINDOW, 0, 0, b"\0\1\0\0")])),
)


@settings(max_examples=examples(60))
@given(st.lists(walks, max_size=25))
def test_messages_that_wait_reach_their_handlers_as_others_do(steps):
    """Here each frame ends a turn. Only calls that end meanwhile may get fewer, or more."""
    logs, credit, held_bytes = walked(steps, turn_s=1e-6)
    all_logs, all_credit, all_held_bytes = walked(steps, turn_s=math.inf)
    for number, log in all_logs.items():
        seen = zip(log[:-1], logs[number][:-1], strict=("closed", None) not in log)
        assert all(one == other for one, other in seen)
        assert log[-1] == logs[number][-1]
    assert (credit, held_bytes) == (all_credit, all_held_bytes)
