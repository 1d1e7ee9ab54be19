"""jh2 as it is used here: its settings, and what it does otherwise than a busy server wants it."""

from __future__ import annotations

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.hyperframe.frame import GoAwayFrame
from jh2.settings import SettingCodes, Settings

from laar.server.h2.guard import MAX_FRAME_BYTES, MAX_HEADER_BLOCK_BYTES

__all__ = [
    "CONNECTION_WINDOW_BYTES",
    "HEADER_LIST_BYTES",
    "STREAM_WINDOW_BYTES",
    "goaway",
    "greet",
    "new_library",
]

STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
"""What a peer may send ahead of us; the rest of a long body waits on its side."""

HEADER_LIST_BYTES = 16 << 10
"""As gRPC's own limit. Beyond it a call fails, beyond `MAX_HEADER_BLOCK_BYTES` the connection."""

_FIRST_WINDOW_BYTES = 65535


class _Library(H2Connection):  # type: ignore[misc]  # it ships no types
    """jh2's connection without two things that cost by the number of open streams."""

    MAX_CLOSED_STREAMS = 1024

    _prune_at = 64

    @property
    def open_inbound_streams(self) -> int:
        """None: who calls limits them. Each call went through all streams; this one now and then.

        A stream too many would also end the connection, since the peer may not know the limit yet.
        """
        if len(self.streams) >= self._prune_at:
            super().open_inbound_streams  # noqa: B018 - forgets the closed ones
            self._prune_at = 2 * len(self.streams) + 64
        return 0


_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    normalize_inbound_headers=False,
)


def greet(library: H2Connection) -> None:
    """Has the library say what this side takes."""
    library.initiate_connection()
    library.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES)


def goaway(last_stream_id: int, code: int) -> bytes:
    """A GOAWAY frame. The library would take no frame more once it has said it itself."""
    gone: bytes = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code).serialize()
    return gone


def new_library(max_streams: int) -> H2Connection:
    """The server's side of one connection."""
    library = _Library(config=_CONFIG)
    library.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        },
    )
    library.max_inbound_frame_size = MAX_FRAME_BYTES
    library.decoder.max_header_list_size = MAX_HEADER_BLOCK_BYTES
    return library
