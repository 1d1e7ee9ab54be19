"""The wire format of gRPC over HTTP/2: length-prefixed messages, statuses, timeouts.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from urllib.parse import quote_from_bytes

from jh2.hpack import NeverIndexedHeaderTuple

PREFIX_BYTES = 5
"""Size of a message's prefix: compression flag and length."""
_FEW_PIECES = 64
_SMALL_PIECE_BYTES = 1024
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS = 8
_MESSAGE_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")


class Code(IntEnum):
    """The gRPC status codes used here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """Raised to end a call with a status and a reason."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Unframer:
    """Reassembles messages of at most `longest_bytes` from pieces of any size."""

    __slots__ = ("_longest_bytes", "_missing", "_pieces", "_prefix", "held_bytes", "midway")

    def __init__(self, longest_bytes: int) -> None:
        self._longest_bytes = longest_bytes
        self._prefix = b""
        self._missing = 0  # bytes missing from the current message
        self._pieces: list[bytes] = []
        self.held_bytes = 0
        """Bytes held of an incomplete message."""
        self.midway = False
        """Whether a message is incomplete."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that a piece completes, each before parsing the next.

        Raises:
            CallError: a message is compressed or too long.
        """
        try:
            yield from self._cut(data)
        finally:
            self.midway = bool(self._prefix or self._missing)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at, end = 0, len(data)
        while at < end:
            if self._missing:
                piece = data[at : at + self._missing] if at or end > self._missing else data
                at += len(piece)
                if (message := self._continued(piece)) is not None:
                    yield message
                continue
            if self._prefix or end - at < PREFIX_BYTES:
                taken = PREFIX_BYTES - len(self._prefix)
                self._prefix += data[at : at + taken]
                at = min(at + taken, end)
                if len(self._prefix) < PREFIX_BYTES:
                    break
                length = self._length(self._prefix, 0)
                self._prefix = b""
            else:
                length = self._length(data, at)
                at += PREFIX_BYTES
            if end - at >= length:
                yield data[at : at + length]
                at += length
            else:
                self._missing = length

    def _continued(self, piece: bytes) -> bytes | None:
        """Return the current message if this piece completes it."""
        pieces = self._pieces
        pieces.append(piece)
        self.held_bytes += len(piece)
        self._missing -= len(piece)
        if not self._missing:
            message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self.held_bytes = 0
            return message
        if len(pieces) > _FEW_PIECES + self.held_bytes // _SMALL_PIECE_BYTES:
            pieces[:] = [b"".join(pieces)]  # a one-byte piece takes 34 bytes as an object
        return None

    def _length(self, data: bytes, at: int) -> int:
        if data[at]:
            raise CallError(Code.UNIMPLEMENTED, "compressed messages are not supported")
        length = int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
        if length > self._longest_bytes:
            text = f"Received message larger than max ({length} vs. {self._longest_bytes})"
            raise CallError(Code.RESOURCE_EXHAUSTED, text)
        return length


def status_headers(code: Code, text: str = "") -> list[tuple[bytes, bytes]]:
    """Return the trailers that end a call."""
    headers = [(b"grpc-status", b"%d" % code)]
    if text:
        quoted = quote_from_bytes(text.encode("utf-8", "replace"), safe=_MESSAGE_SAFE)
        # Controlled by the peer, so it must not enter the compression table.
        headers.append(NeverIndexedHeaderTuple(b"grpc-message", quoted.encode()))
    return headers


def timeout_s(value: str) -> float:
    """Return a ``grpc-timeout`` in seconds.

    Raises:
        CallError: it is malformed.
    """
    digits, unit = value[:-1], _UNIT_S.get(value[-1:])
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
        raise CallError(Code.INTERNAL, "grpc-timeout is malformed")
    return int(digits) * unit
