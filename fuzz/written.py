"""A stand-in for the socket of a connection that gets its bytes from a test."""

from __future__ import annotations

__all__ = ["Written"]


class Written:
    """Takes what is written, until it is closed.

    Attributes:
        data: all of it.
    """

    def __init__(self) -> None:
        self._closed = False
        self.data = b""

    def write(self, data: bytes) -> None:
        """Takes bytes; an error once it is closed."""
        assert not self._closed
        self.data += data

    def close(self) -> None:
        """Takes no more."""
        self._closed = True

    abort = close

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def get_extra_info(self, _name: str) -> None:
        """Knows no peer."""
        return

    def set_write_buffer_limits(self, high: int) -> None:
        """Has no buffer."""

    def get_write_buffer_size(self) -> int:
        """Bytes that wait: none."""
        return 0
