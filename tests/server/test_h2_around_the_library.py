"""DATA and headers that go around the HTTP/2 library: all they cause is as if they had not."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from fuzz.written import Written, by_the_library
from h2_peers import HEADERS, PREFACE, Served, frame
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jh2.hpack import Decoder, Encoder

from laar.server.h2 import H2Server, framing
from laar.server.h2.connection import Connection

DATA, HEADER, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END, PADDED = 0x1, 0x8


async def _play(reads, by_library):
    server = H2Server(longest_bytes=1 << 20)
    served = Served(server, 0)
    server.add_method("test.Test", "Echo", served.begin)
    connection, socket = Connection(server), Written()
    if by_library:
        by_the_library(connection)
    connection.connection_made(socket)
    for read in (PREFACE, frame(SETTINGS), *reads):
        connection.data_received(read)
    h2 = connection.h2
    # The credit for two reads may be given back in two.
    owed = Counter({call.stream_id: call._owed_bytes for call in served.calls})
    owed[0] = connection._owed_bytes
    written, granted = split(socket.data)
    windows = {0: (h2.outbound_flow_control_window, h2.inbound_flow_control_window + owed[0])}
    for number, stream in h2.streams.items():
        if not stream.closed:
            inbound = stream.inbound_flow_control_window + owed[number]
            windows[number] = (stream.outbound_flow_control_window, inbound)
    return {
        "seen": served.seen,
        "closed": socket.is_closing(),
        "written": written,
        "windows": windows,
        "given back": {number: granted[number] + owed[number] for number in windows},
        "states": {number: stream.state_machine.state for number, stream in h2.streams.items()},
    }


def split(data):
    """What was written to each stream, and the windows it was given.

    However its DATA was cut, and its headers were compressed.
    """
    written, granted, at = {}, Counter(), 0
    decoder = Decoder()
    decoder.max_allowed_table_size = 1 << 32
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        kind, stream, payload = data[at + 3], int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
        said = written.setdefault(stream, [])
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


def play(reads, *, by_library):
    with asyncio.Runner() as runner:
        return runner.run(_play(reads, by_library))


def opened(number, *more, flags=0x4):
    block = Encoder().encode([*HEADERS, *more])  # refers to nothing that was sent before
    return frame(HEADER, flags, number, bytes(block))


PAYLOADS = [
    *map(framing.frame, (b"", b"abc", b"hold", b"silent", b"many90000", b"fault")),
    framing.frame(b"x" * 100_000),
    framing.frame(b"y" * 9000) * 3,
    framing.frame(b"z" * 400_000)[:200_000],
    b"\0\0\0",
    b"\1\0\0\0\0",
    b"\0\xff\xff\xff\xff",
    b"",
    b"x" * (1 << 18),
]
numbers = st.sampled_from([1, 3, 5, 7])
some = st.one_of(
    st.builds(lambda n, payload: frame(DATA, 0, n, payload), numbers, st.sampled_from(PAYLOADS)),
    st.builds(
        lambda n, payload: frame(DATA, 0, n, payload), st.just(1), st.sampled_from(PAYLOADS[:9])
    ),
    st.builds(lambda n: frame(DATA, END, n, framing.frame(b"end")), numbers),
    st.builds(lambda n: frame(DATA, PADDED, n, b"\3" + framing.frame(b"pad") + b"\0" * 3), numbers),
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
    st.builds(lambda _: frame(PING, 0, 0, b"12345678"), st.none()),
)


def assert_the_same(frames, cuts=()):
    """Frame by frame through the library, and cut in any way around it."""
    pieces = []
    for one in frames:
        marks = sorted({0, len(one), *(c % len(one) for c in cuts)})
        pieces += [one[a:b] for a, b in itertools.pairwise(marks)]
    expected = play(frames, by_library=True)
    assert play(pieces, by_library=False) == expected
    return expected


@pytest.mark.filterwarnings("default:Generating overly large repr")  # of a counter-example
@settings(max_examples=40)  # the fuzz target does so at length
@given(st.lists(some, max_size=12), st.lists(st.integers(0, 1 << 18), max_size=4))
@example([frame(DATA, 0, 1, payload) for payload in PAYLOADS[:9]], [5, 11, 100])
@example([frame(DATA, 0, 1, PAYLOADS[1] + PAYLOADS[10])], [17])  # a message, then a fault
@example([frame(DATA, 0, 1, PAYLOADS[5] + PAYLOADS[1])], [19])  # and the other way round
def test_any_frames_cause_the_same_as_through_the_library(frames, cuts):
    assert_the_same([opened(1), opened(3), opened(5), *frames], cuts)


headers = st.lists(
    st.sampled_from(
        [
            *HEADERS,
            (":status", "200"),
            (":path", ""),
            ("host", "test"),
            ("host", "other"),
            ("te", "gzip"),
            ("connection", "close"),
            ("Upper", "x"),
            ("", "x"),
            ("blank", " x"),
            ("content-length", "7"),
            ("x-long", "x" * 300),
        ]
    ),
    max_size=4,
)


@settings(max_examples=60)
@given(headers, headers, st.booleans())
def test_headers_that_were_seen_before_are_judged_as_by_the_library(more, trailers, whole):
    """As a request's and as trailers, where other rules hold; a fault is one each time."""
    block = bytes(Encoder().encode(trailers))
    start = opened(1, *more) if whole else frame(HEADER, 0x4, 1, bytes(Encoder().encode(more)))
    for _ in range(2):
        assert_the_same([start, frame(HEADER, 0x4 | END, 1, block)])
        assert_the_same([opened(1), start.replace(b"\0\0\0\1", b"\0\0\0\3")])


def settled(table_bytes):
    return frame(SETTINGS, 0, 0, b"\0\1" + table_bytes.to_bytes(4, "big"))


@pytest.mark.parametrize("sizes", [(), (4096,), (65536,), (0,), (100, 4096), (0, 0)])
def test_answers_can_be_read_whatever_becomes_of_the_peers_table(sizes):
    """By a decoder that holds the sender to what RFC 7541, 4.2, asks of it."""
    say = frame(DATA, 0, 1, framing.frame(b"abc"))
    told = [settled(size) for size in sizes]
    reads = [opened(1), say, *told]
    for number in (3, 5):
        reads += [opened(number), say.replace(b"\0\0\0\1", bytes([0, 0, 0, number]))]
    data = asyncio.run(_written(reads))
    decoder, answers, at, told = Decoder(), 0, 0, list(sizes)
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        kind, flags = data[at + 3 : at + 5]
        if kind == SETTINGS and flags and answers:  # it takes the new size
            size = told.pop(0)
            decoder.max_allowed_table_size = size
        elif kind == HEADER:
            block = decoder.decode(data[at + 9 : end], raw=True)
            assert dict(block)[b":status"] == b"200"
            answers += 1
        at = end
    assert answers == 3
    assert not told


async def _written(reads):
    server = H2Server(longest_bytes=1 << 20)
    server.add_method("test.Test", "Echo", Served(server, 0).begin)
    connection, socket = Connection(server), Written()
    connection.connection_made(socket)
    for read in (PREFACE, frame(SETTINGS), *reads):
        connection.data_received(read)
    return socket.data


HELD = [opened(1), frame(DATA, 0, 1, framing.frame(b"hold"))]
LONG = frame(DATA, 0, 1, framing.frame(b"x" * ((1 << 18) - 5)))


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([*HELD, *[LONG] * 4], 3),  # beyond the stream's window
        ([opened(1), frame(DATA, 0, 3, b"x")], 1),  # never opened
        ([opened(1), frame(DATA, END, 1), opened(3), frame(DATA, 0, 1, b"x")], None),
        ([opened(1), frame(RST, 0, 1, b"\0\0\0\0"), frame(DATA, 0, 1, b"x")], None),
        ([opened(1, flags=0), frame(DATA, 0, 1, b"x")], 1),  # within a block of headers
        ([opened(1), opened(3, flags=0), frame(DATA, 0, 1, b"x")], 1),
        ([opened(1, ("content-length", "5")), frame(DATA, 0, 1, framing.frame(b"abc"))], 1),
        ([opened(1), frame(DATA, PADDED, 1, b"\x09abc")], 1),
        ([opened(1), frame(DATA, 0, 0, b"x")], 1),
    ],
)
def test_what_is_an_error_is_the_same_error(frames, code):
    ended = assert_the_same(frames, [4, 9, 12])
    assert ended["closed"] is (code is not None)
    if code is not None:
        kind, payload = ended["written"][0][-1]
        assert (kind, payload[7]) == (GOAWAY, code)


def test_a_long_message_is_given_its_window_back_and_comes_whole():
    message = framing.frame(bytes(900_000))
    sent = [frame(DATA, 0, 1, message[at : at + 16384]) for at in range(0, len(message), 16384)]
    ended = assert_the_same([opened(1), *sent], [7000])
    assert ("message", 900_000) in ended["seen"]
    assert ended["given back"][1] == len(message)
