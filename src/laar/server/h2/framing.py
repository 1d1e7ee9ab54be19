"""The wire format of gRPC over HTTP/2: length-prefixed messages and statuses.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

from collections.abc import Iterator

from laar.server.transport import Code

PREFIX_BYTES = 5
"""Size of a message's prefix: compression flag and length."""

MAX_LITERAL_BYTES = 126
"""Maximum length of header names and values that laar sends: a greater length takes more than one
byte."""


class CallError(Exception):
    """Raised to end a call with a status and a reason."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Unframer:
    """Reassembles messages of at most `longest_bytes` from pieces of any size."""

    def __init__(self, longest_bytes: int) -> None:
        self._longest_bytes = longest_bytes
        self.held = bytearray()
        """The part of an incomplete message received so far."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that a piece completes, each before parsing the next.

        Raise `CallError` if a message is compressed or too long.
        """
        held, at = self.held, 0
        held += data
        while len(held) - at >= PREFIX_BYTES:
            if held[at]:
                raise CallError(Code.UNIMPLEMENTED, "compressed messages are not supported")
            length = int.from_bytes(held[at + 1 : at + PREFIX_BYTES], "big")
            if length > self._longest_bytes:
                text = f"Received message larger than max ({length} vs. {self._longest_bytes})"
                raise CallError(Code.RESOURCE_EXHAUSTED, text)
            end = at + PREFIX_BYTES + length
            if end > len(held):
                break
            yield bytes(memoryview(held)[at + PREFIX_BYTES : end])
            at = end
        del held[:at]


def status_headers(code: Code, text: str = "") -> list[tuple[bytes, bytes]]:
    """Return the trailers that end a call; `text` is ASCII without percent signs."""
    headers = [(b"grpc-status", b"%d" % code)]
    if text:
        headers.append((b"grpc-message", text.encode()[:MAX_LITERAL_BYTES]))
    return headers
