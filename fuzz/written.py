"""A connection that gets its bytes from a test: its socket, and one that jh2 alone serves."""

from __future__ import annotations

from laar.server.h2.connection import Connection

__all__ = ["Written", "by_the_library"]


def by_the_library(connection: Connection) -> None:
    """Let the library read and write all frames; call it before the first one."""
    connection.h2.bypassed = False


class Written:
    """Takes what is written, until it is closed.

    Attributes:
        data: all of it.
    """

    def __init__(self) -> None:
        self._closed = False
        self.data = b""

    def write(self, data: bytes) -> None:
        """Take bytes; an error once it is closed."""
        assert not self._closed
        self.data += data

    def close(self) -> None:
        """Take no more."""
        self._closed = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        """Return True: the server may end its half, which closes it here."""
        return True

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def get_extra_info(self, _name: str) -> None:
        """Return nothing: there is no peer."""
        return

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: there is no buffer."""

    def get_write_buffer_size(self) -> int:
        """Bytes that wait: none."""
        return 0
