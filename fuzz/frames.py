"""HTTP/2 frames in any order, whole and damaged, to one connection of the ext_proc port."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from jh2.hpack import Encoder

from fuzz.choices import Choices
from fuzz.written import Written
from laar.server.h2 import H2Server
from laar.server.h2.call import Call
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


class _Echo:
    """Sends back each message, but waits when it is asked to."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.ends = 0

    def receive(self, message: bytes) -> None:
        if message == b"hold":
            self._call.hold()
        self._call.send(message)

    def half_closed(self) -> None:
        self._call.end()

    def closed(self) -> None:
        self.ends += 1


def frames(data: bytes) -> None:
    """No error leaves, all calls end once, nothing is held afterwards."""
    _runner.run(_speak(Choices(data)))


async def _speak(choices: Choices) -> None:
    server = H2Server(longest_bytes=1000)
    begun: list[_Echo] = []

    def begin(call: Call) -> _Echo:
        begun.append(_Echo(call))
        return begun[-1]

    server.add_method("fuzz.Fuzz", "Echo", begin)
    faults: list[str] = []
    connection = Connection(server)
    connection._fail = _noting(connection._fail, faults)  # type: ignore[method-assign]
    connection.connection_made(cast(asyncio.Transport, Written()))
    encoder = Encoder()
    connection.data_received(_PREFACE if choices.number(16) else choices.some(40))
    held = b""
    while len(choices):
        held += _frame(choices, encoder)
        if choices.number(3):
            connection.data_received(held)
            held = b""
    connection.data_received(held)
    connection.connection_lost(None)
    assert not faults
    assert all(one.ends == 1 for one in begun)
    assert not server.connections
    assert not connection.blocked
    assert connection._held_bytes == 0


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
