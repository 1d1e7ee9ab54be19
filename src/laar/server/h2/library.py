"""Configure jh2, and bypass the parts that are too slow for a busy server.

jh2's frame objects cost more than the frames' content, so a typical call's frames bypass them:
`takes` selects frames that are complete, without padding or priority, and valid for their stream,
and `open`, `close` and `write_data` keep jh2's streams and windows up to date. jh2 handles all
other frames, such as stream ends other than resets, and all errors.

Headers repeat from call to call. A header list that jh2 has accepted is not validated again, and
response headers are written uncompressed, without jh2's encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jh2.config import H2Configuration
from jh2.connection import AllowedStreamIDs, ConnectionState, H2Connection, _decode_headers
from jh2.exceptions import ProtocolError
from jh2.settings import SettingCodes, Settings
from jh2.stream import H2Stream, StreamInputs, StreamState
from jh2.utilities import HeaderValidationFlags, validate_headers

from laar.server.h2.guard import HEADERS, MAX_FRAME_BYTES, MAX_HEADER_BLOCK_BYTES, RST_STREAM

STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
"""Bytes that a peer may send before laar reads them; the rest of a body waits at the peer."""

HEADER_LIST_BYTES = 16 << 10
"""Maximum size of a header list, as in gRPC. A larger one fails the call; one larger than
`MAX_HEADER_BLOCK_BYTES` fails the connection."""

_FIRST_WINDOW_BYTES = 65535
_END_STREAM = 0x1
_NO_TABLE = b"\x20"
"""Sets the size of the compression table to 0. Since it stays empty, it need not follow the peer's
changes to its maximum size (RFC 7541, 4.2)."""
_KNOWN_LISTS = _KNOWN_HEADERS = 64
"""Maximum number of cached header lists, and of headers in each: they take up to 6 MiB, but about
20 KB if Envoy is the peer."""

Headers = tuple[tuple[bytes, bytes], ...]
_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)
_SERVING = ConnectionState.SERVER_OPEN
CLOSED = StreamState.CLOSED
_RESET_BYTES = 4


class Library(H2Connection):  # type: ignore[misc]  # it has no type information
    """jh2's connection, with less work per open stream and per frame."""

    MAX_CLOSED_STREAMS = 1024

    _prune_at = 64
    _data_to_send: bytearray

    def __init__(self, max_streams: int) -> None:
        """Begin the server side of a connection, and announce its limits to the peer."""
        super().__init__(config=_CONFIG)
        self._before_headers = _NO_TABLE  # sent only before the first headers
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
            },
        )
        self.max_inbound_frame_size = MAX_FRAME_BYTES
        self.decoder.max_header_list_size = MAX_HEADER_BLOCK_BYTES
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES)

    @property
    def open_inbound_streams(self) -> int:
        """Return 0: `Connection` limits streams. jh2 would walk all streams for each new one.

        It would also fail a connection that exceeds the limit, which the peer may not know yet.
        """
        if len(self.streams) >= self._prune_at:
            super().open_inbound_streams  # noqa: B018 - drops the closed ones
            self._prune_at = 2 * len(self.streams) + 64
        return 0

    def takes(self, kind: int, stream_id: int, length: int) -> bool:
        """Return whether a frame bypasses the library; pass others to `receive_data`.

        Args:
            kind: `DATA`, `HEADERS` or `RST_STREAM`. If the frame bypasses the library, DATA is
                subtracted from the windows; pass headers to `open`, a reset to `close`.
            stream_id: its stream.
            length: bytes of its payload.
        """
        if self.incoming_buffer._headers_buffer:
            return False
        if kind == HEADERS:
            is_new = stream_id > self.highest_inbound_stream_id
            return is_new and self.state_machine.state is _SERVING
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        if kind == RST_STREAM:
            return length == _RESET_BYTES
        state = stream.state_machine.state
        if state not in _RECEIVING or stream._expected_content_length is not None:
            return False
        ours, of_stream = self._inbound_flow_control_window_manager, stream._inbound_window_manager
        our_bytes, stream_bytes = ours.current_window_size, of_stream.current_window_size
        if length > our_bytes or length > stream_bytes:
            return False  # the library raises the proper error
        ours.current_window_size = our_bytes - length
        of_stream.current_window_size = stream_bytes - length
        return True

    def open(self, stream_id: int, block: bytes) -> Head:
        """Open a stream with headers that `takes` accepted.

        Raises:
            ProtocolError: the headers can't be decoded, or break a rule.
        """
        if len(self.streams) >= self._prune_at:
            self.open_inbound_streams  # noqa: B018 - drops the closed ones
        try:
            found = tuple(_decode_headers(self.decoder, block))
            stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
            stream.state_machine.process_input(StreamInputs.RECV_HEADERS)
            head = head_of(found)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise
        stream._expected_content_length = head.content_length
        return head

    def close(self, stream_id: int) -> None:
        """Close a stream for a reset that `takes` accepted."""
        self.streams[stream_id].state_machine.process_input(StreamInputs.RECV_RST_STREAM)

    def forget(self) -> None:
        """Break reference cycles once the peer is gone."""
        self._frame_dispatch_table.clear()

    def write_headers(self, stream: H2Stream, headers: Headers, *, end: bool = False) -> None:
        """Write headers or trailers to a stream that has not ended; `end` if nothing follows."""
        block, self._before_headers = self._before_headers + _literal(headers), b""
        stream.state_machine.process_input(StreamInputs.SEND_HEADERS)
        kind = HEADERS
        if end:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
            kind |= _END_STREAM
        head = len(block) << 48 | kind << 32 | stream.stream_id
        self._data_to_send += head.to_bytes(9, "big") + block

    def write_data(
        self, stream: H2Stream, pieces: Sequence[bytes | memoryview], length: int
    ) -> None:
        """Write a DATA frame to a stream that has not ended.

        Its `length` in bytes must not exceed either window or the maximum frame size.
        """
        self.outbound_flow_control_window -= length
        stream.outbound_flow_control_window -= length
        written = self._data_to_send
        written += (length << 48 | stream.stream_id).to_bytes(9, "big")  # type and flags are 0
        written += b"".join(pieces)


_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    normalize_inbound_headers=False,
)


@dataclass(frozen=True, slots=True)
class Head:
    """A validated list of headers, shared by calls with the same headers.

    Attributes:
        headers: names and values.
        named: value of each name; the last one if repeated.
        size_bytes: size to compare with `HEADER_LIST_BYTES`.
        content_length: the announced length, if any.
    """

    headers: Headers
    named: Mapping[bytes, bytes]
    size_bytes: int
    content_length: int | None


def head_of(found: tuple[tuple[Any, ...], ...]) -> Head:
    """Validate a request's headers as decoded; cache the results for short lists.

    Raises:
        ProtocolError: the headers break a rule.
    """
    read = _known if len(found) <= _KNOWN_HEADERS else _known.__wrapped__
    return read(found)


@lru_cache(_KNOWN_LISTS)
def _known(found: tuple[tuple[Any, ...], ...]) -> Head:
    headers = tuple((name, value) for name, value, *_ in found)
    for _ in validate_headers(headers, HeaderValidationFlags(False, False, False, False)):
        pass
    stream = H2Stream(0, _CONFIG, 0, 0)
    stream._initialize_content_length(headers)
    size_bytes = sum(len(name) + len(value) + 32 for name, value in headers)
    return Head(headers, dict(headers), size_bytes, stream._expected_content_length)


@lru_cache(_KNOWN_LISTS)
def _literal(headers: Headers) -> bytes:
    """Return short headers as never-indexed literals (RFC 7541, 6.2.3); see `MAX_LITERAL_BYTES`."""
    return b"".join(
        b"\x10%c%b%c%b" % (len(name), name, len(value), value) for name, value in headers
    )
