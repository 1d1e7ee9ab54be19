"""Configure jh2, and bypass its frame objects for DATA, of which long answers consist.

For a chunk they take more CPU than the rest of laar, and use names that jh2 does not document. So
only tested releases are bypassed; with any other, jh2 handles DATA, too, by its public calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import jh2
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.settings import SettingCodes, Settings
from jh2.stream import H2Stream, StreamState

from laar.server.h2.guard import MAX_FRAME_BYTES, MAX_HEADER_BLOCK_BYTES

STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
"""Bytes that a peer may send before laar reads them; the rest of a body waits at the peer."""

HEADER_LIST_BYTES = 16 << 10
"""Maximum size of a header list, as in gRPC. A larger one fails the call; one larger than
`MAX_HEADER_BLOCK_BYTES` fails the connection."""

_TESTED = "5.0."
_FIRST_WINDOW_BYTES = 65535
_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)

Headers = Sequence[tuple[bytes, bytes]]


class Library(H2Connection):  # type: ignore[misc]  # it has no type information
    """jh2's connection, with less work per open stream and per DATA frame."""

    MAX_CLOSED_STREAMS = 1024

    bypassed = jh2.__version__.startswith(_TESTED)  # type: ignore[attr-defined]
    _prune_at = 64

    def __init__(self, max_streams: int) -> None:
        """Begin the server side of a connection, and announce its limits to the peer."""
        super().__init__(config=_CONFIG)
        self._written: list[bytes | memoryview] = []
        self.unsent_bytes = 0
        """Bytes of DATA that `data_to_send` will return."""
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

    def takes(self, stream_id: int, length: int) -> bool:
        """Return whether a DATA frame bypasses the library; if so, subtract it from the windows.

        Pass others to `receive_data`, which raises the proper errors.
        """
        stream = self.streams.get(stream_id)
        if not self.bypassed or stream is None or self.incoming_buffer._headers_buffer:
            return False
        state = stream.state_machine.state
        if state not in _RECEIVING or stream._expected_content_length is not None:
            return False
        ours, of_stream = self._inbound_flow_control_window_manager, stream._inbound_window_manager
        our_bytes, stream_bytes = ours.current_window_size, of_stream.current_window_size
        if length > our_bytes or length > stream_bytes:
            return False
        ours.current_window_size = our_bytes - length
        of_stream.current_window_size = stream_bytes - length
        return True

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
        head = (length << 48 | stream.stream_id).to_bytes(9, "big")  # type and flags are 0
        self._written += (super().data_to_send(), head, *pieces)

    def data_to_send(self, amount: int | None = None) -> bytes:
        """Return all bytes to send, and forget them."""
        sent: bytes = super().data_to_send(amount)
        if self._written:
            sent = b"".join((*self._written, sent))
            self._written.clear()
        self.unsent_bytes = 0
        return sent

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
