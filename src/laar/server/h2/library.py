"""Configure jh2, and bypass its frame objects for the frames of a usual call.

They take more CPU than the frames' content. `takes` selects frames that are valid for their stream,
and jh2's streams, windows and states are kept up to date. This uses names that jh2 does not
document, so only tested releases are bypassed; any other handles all frames by its public calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jh2
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.exceptions import ProtocolError
from jh2.settings import SettingCodes, Settings
from jh2.stream import H2Stream, StreamState

from laar.server.h2.guard import (
    HEADERS,
    LIBRARY,
    MAX_FRAME_BYTES,
    MAX_HEADER_BLOCK_BYTES,
    RST_STREAM,
)

STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
"""Bytes that a peer may send before laar reads them; the rest of a body waits at the peer."""

HEADER_LIST_BYTES = 16 << 10
"""Maximum size of a header list, as in gRPC. A larger one fails the call; one larger than
`MAX_HEADER_BLOCK_BYTES` fails the connection."""

_IS_TESTED = jh2.__version__.startswith("5.0.")  # type: ignore[attr-defined]
if _IS_TESTED:  # others may lack these names
    from jh2.connection import AllowedStreamIDs, ConnectionState, _decode_headers
    from jh2.stream import StreamInputs

_FIRST_WINDOW_BYTES = 65535
_END_STREAM = 0x1
_NO_TABLE = b"\x20"
"""Sets the size of the compression table to 0. Since it stays empty, it need not follow the peer's
changes to its maximum size (RFC 7541, 4.2)."""
_RESET_BYTES = 4
_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)

Headers = tuple[tuple[bytes, bytes], ...]


class Library(H2Connection):  # type: ignore[misc]  # it has no type information
    """jh2's connection, with less work per open stream and per frame."""

    MAX_CLOSED_STREAMS = 1024

    bypassed = _IS_TESTED
    _prune_at = 64
    _data_to_send: bytearray

    def __init__(self, max_streams: int) -> None:
        """Begin the server side of a connection, and announce its limits to the peer."""
        super().__init__(config=_CONFIG)
        self._before_headers = _NO_TABLE  # sent only before the first headers
        self.unsent_bytes = 0
        """Bytes of DATA written since this was set to 0."""
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
            kind: `DATA`, which is then subtracted from the windows, or `HEADERS` or `RST_STREAM`,
                to be passed to `received`.
            stream_id: its stream.
            length: bytes of its payload.
        """
        if not self.bypassed or self.incoming_buffer._headers_buffer:
            return False
        if kind == HEADERS:
            is_new = stream_id > self.highest_inbound_stream_id
            return is_new and self.state_machine.state is ConnectionState.SERVER_OPEN
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

    def received(self, kind: int, stream_id: int, piece: bytes) -> list[Any]:
        """Return the events of headers or a reset that `takes` accepted, or of `LIBRARY` bytes.

        Raise `ProtocolError` if the peer broke a rule.
        """
        events: list[Any]
        if kind == LIBRARY:
            events = self.receive_data(piece)
            return events
        if kind == RST_STREAM:
            machine = self.streams[stream_id].state_machine
            events = machine.process_input(StreamInputs.RECV_RST_STREAM)
            return events
        if len(self.streams) >= self._prune_at:
            self.open_inbound_streams  # noqa: B018 - drops the closed ones
        try:
            headers = _decode_headers(self.decoder, piece)
            stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
            events = stream.state_machine.process_input(StreamInputs.RECV_HEADERS)
            events[0].headers = headers
            stream._initialize_content_length(headers)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise
        return events

    def write_headers(self, stream: H2Stream, headers: Headers, *, end: bool = False) -> None:
        """Write headers or trailers to a stream that has not ended; `end` if nothing follows."""
        if not self.bypassed:
            self.send_headers(stream.stream_id, headers, end_stream=end)
            return
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
        self.unsent_bytes += length
        if not self.bypassed:
            self.send_data(stream.stream_id, b"".join(pieces))
            return
        self.outbound_flow_control_window -= length
        stream.outbound_flow_control_window -= length
        written = self._data_to_send
        written += (length << 48 | stream.stream_id).to_bytes(9, "big")  # type and flags are 0
        written += b"".join(pieces)

    def forget(self) -> None:
        """Break reference cycles once the peer is gone."""
        getattr(self, "_frame_dispatch_table", {}).clear()


_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,  # laar reads four of them, and forwards none
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    normalize_inbound_headers=False,
)


@lru_cache(64)
def _literal(headers: Headers) -> bytes:
    """Return short headers as never-indexed literals (RFC 7541, 6.2.3); see `MAX_LITERAL_BYTES`."""
    return b"".join(
        b"\x10%c%b%c%b" % (len(name), name, len(value), value) for name, value in headers
    )
