"""HTTP/2 frames in any order, whole and damaged, to one connection of the ext_proc port.

A second connection lets the library read and write all frames: both must read and write the same.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

from jh2.hpack import Decoder, Encoder

from fuzz.choices import Choices
from fuzz.written import Written, by_the_library
from laar.server.h2 import H2Call, H2Server, Handler
from laar.server.h2.connection import Connection

__all__ = ["frames"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/fuzz.Fuzz/Echo"),
    (b":authority", b"fuzz"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"grpc-timeout", b"1S"),
)
_OTHERS = ((b":path", b"/none"), (b"grpc-encoding", b"gzip"), (b"A", b"b"), (b":status", b"200"))
_PAYLOADS = (
    b"\0\0\0\0\3abc",
    b"\0\0\0\0\0",
    b"\0\0\0\0\4hold",
    b"\0\0\0\0\5abc",
    b"\1\0\0\0\1a",
    b"\0\xff\xff\xff\xff",
    b"\0\0",
    b"12345678",
    b"\0\0\0\1",
    b"\0\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\0\4\0\0\0\0",
    b"\0\4\x7f\xff\xff\xff",
    b"\0\2\0\0\0\1",
    b"\0\5\0\0\0\0",
    b"",
)
_STREAMS = (0, 1, 1, 1, 3, 3, 5, 7, 2, 2**31 - 1)

_runner = asyncio.Runner()


class _Echo(Handler):
    """Sends back each message, but waits when it is asked to."""

    def __init__(self, call: H2Call) -> None:
        self._call = call
        self.heard: list[bytes] = []
        self.ends = 0

    def receive(self, message: bytes) -> None:
        self.heard.append(message)
        if message == b"hold":
            self._call.hold()
        self._call.send(message)

    def half_closed(self) -> None:
        self._call.end()

    def closed(self) -> None:
        self.ends += 1


class _Side:
    """A connection, and what came of it."""

    def __init__(self) -> None:
        self.server = H2Server(longest_bytes=1000)
        self.server.add_method("fuzz.Fuzz", "Echo", self._begin)
        self.begun: list[_Echo] = []
        self.faults: list[str] = []
        self.socket = Written()
        self.connection = Connection(self.server)
        self.connection.turn_s = math.inf
        fail = self.connection._fail
        self.connection._fail = _noting(fail, self.faults)  # type: ignore[method-assign]
        self.connection.connection_made(cast(asyncio.Transport, self.socket))

    def _begin(self, call: H2Call) -> _Echo:
        self.begun.append(_Echo(call))
        return self.begun[-1]

    def heard(self) -> list[list[bytes]]:
        """The messages of each call."""
        return [one.heard for one in self.begun]

    def streams(self) -> tuple[int, dict[int, dict[str, Any]]]:
        """What the library knows of streams: the last, and the states of all."""
        h2 = self.connection.h2
        states = {number: vars(stream.state_machine) for number, stream in h2.streams.items()}
        return h2.highest_inbound_stream_id, states

    def end(self) -> None:
        """Close the socket."""
        self.connection.connection_lost(None)
        assert not self.faults
        assert all(one.ends == 1 for one in self.begun)
        assert not self.server.connections
        assert not self.connection.blocked
        assert self.connection._held_bytes == 0


def frames(data: bytes) -> None:
    """Check that no error escapes, each call ends once, and nothing is held afterwards."""
    _runner.run(_speak(Choices(data)))


async def _speak(choices: Choices) -> None:
    sides = one, other = _Side(), _Side()
    by_the_library(other.connection)
    encoder = Encoder()
    held = _PREFACE if choices.number(16) else choices.some(40)
    sent = b""
    while True:
        sent += held
        for side in sides:
            side.connection.data_received(held)
        held = b""
        while len(choices) and not held:
            held += _frame(choices, encoder)
            while len(choices) and not choices.number(3):
                held += _frame(choices, encoder)
        if not held:
            break
    closed = one.socket.is_closing()
    assert closed == other.socket.is_closing()
    # The library drops what the last read brought before an error, and waits for a whole frame.
    if closed or _is_cut(sent):
        for heard, begun in zip(other.heard(), one.heard(), strict=False):
            assert begun[: len(heard)] == heard
    else:
        assert one.heard() == other.heard()
        assert _said(one.socket.data) == _said(other.socket.data)
        assert one.streams() == other.streams()
    for side in sides:
        side.end()


def _is_cut(sent: bytes) -> bool:
    """Whether the last frame is not whole."""
    at = len(_PREFACE) - 9  # its settings are a frame
    while at < len(sent):
        at += 9 + int.from_bytes(sent[at : at + 3], "big")
    return at > len(sent)


def _said(data: bytes) -> dict[bytes, list[tuple[int, int, Any]]]:
    """What was written to each stream, however its headers were compressed."""
    streams: dict[bytes, list[tuple[int, int, Any]]] = {}
    decoder = Decoder()
    decoder.max_allowed_table_size = 2**32
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        payload: Any = data[9:end]
        if data[3] == 1:  # HEADERS
            payload = decoder.decode(payload, raw=True)
        streams.setdefault(data[5:9], []).append((data[3], data[4], payload))
        data = data[end:]
    return streams


def _noting(fail: Any, faults: list[str]) -> Any:
    def noted(text: str, code: Any) -> None:
        if text == "an internal error":
            faults.append(text)
        fail(text, code)

    return noted


def _frame(choices: Choices, encoder: Encoder) -> bytes:
    """One frame, now and then with another length, kind or flag than its payload's."""
    way = choices.number(6)
    stream = _STREAMS[choices.number(len(_STREAMS))]
    if way < 2:
        sent = list(_HEADERS[: len(_HEADERS) - choices.number(3)])
        if choices.number(8) == 1:
            sent.append(_OTHERS[choices.number(len(_OTHERS))])
        kind, flags, payload = 1, 4, bytes(encoder.encode(sent))
    elif way == 2:
        kind, flags, payload = 0, 0, choices.one(_PAYLOADS) + choices.one(_PAYLOADS)
    else:
        kind, flags, payload = choices.number(12), 0, choices.one(_PAYLOADS)
    if choices.number(8) == 1:
        payload += choices.some(30)
    if choices.number(4) == 1:
        flags |= 1 << choices.number(6)
    length = len(payload) if choices.number(32) != 1 else choices.number(256)
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
