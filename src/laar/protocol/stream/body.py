"""The request's body while it is collected, the limit on all such bodies, and bodies in pieces."""

from __future__ import annotations

from laar.protocol.events import Action, AnswerBody, Direction

__all__ = ["PIECE_BYTES", "Collected", "HeldBytes", "send_pieces"]

PIECE_BYTES = 62_000
"""Longest piece of a body in one message of the gateway shape: some Envoys cap a piece at 64 KiB,
and the frame around it needs room."""


class HeldBytes:
    """Bytes of bodies, unfinished or waiting to be read, that all streams together hold.

    Args:
        limit_bytes: most bytes held; may be changed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.now_bytes = 0

    def take(self, count: int) -> bool:
        """Takes `count` more bytes; False, and nothing is taken, where there is no room."""
        if self.now_bytes + count > self.limit_bytes:
            return False
        self.now_bytes += count
        return True

    def give_back(self, count: int) -> None:
        """Gives back bytes that were taken."""
        self.now_bytes -= count


class Collected:
    """One request's body, as far as it has arrived.

    Args:
        held: counts the bytes collected by all streams; None sets no limit.
    """

    def __init__(self, held: HeldBytes | None) -> None:
        self._held = held
        self._taken_bytes = 0
        self._data: bytes | bytearray | None = None
        self.size_bytes = 0
        """Bytes of all that came, dropped or not; of the changed body once there is one."""
        self.whole = False
        """Whether the body is complete."""
        self.trailers = False
        """Whether trailers follow the body."""
        self.changed = False
        """Whether the body differs from the client's."""

    @property
    def data(self) -> bytes | None:
        """The bytes collected, possibly none; None where no body came."""
        return None if self._data is None else bytes(self._data)

    def add(self, data: bytes) -> None:
        """Takes a piece of the body into one buffer: a piece of one byte is 40 as an object."""
        self.size_bytes += len(data)
        if self._data is None:
            self._data = data
        else:
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += data

    def hold(self, count: int) -> bool:
        """Counts bytes among those of all streams until `release`; False without room."""
        if self._held is None:
            return True
        if not self._held.take(count):
            return False
        self._taken_bytes += count
        return True

    def release(self) -> None:
        """Counts this body no longer: it is whole, read, or not wanted any more."""
        if self._held is not None and self._taken_bytes:
            self._held.give_back(self._taken_bytes)
            self._taken_bytes = 0

    def complete(self) -> bytes:
        """The whole body; an empty one where none came."""
        self.release()
        self.whole = True
        data = self._data = bytes(self._data or b"")
        return data

    def replace(self, data: bytes) -> None:
        """Puts another body in the place of the whole one."""
        self._data, self.changed = data, True
        self.size_bytes = len(data)

    def take(self) -> bytes | None:
        """The same as `data`; the body is then no longer kept."""
        data, self._data = self.data, None
        self.release()
        return data


def send_pieces(direction: Direction, data: bytes, *, end: bool, out: list[Action]) -> None:
    """Adds a body in pieces that Envoy takes; an empty one is one empty piece."""
    view = memoryview(data)
    for at in range(0, max(len(data), 1), PIECE_BYTES):
        last = at + PIECE_BYTES >= len(data)
        out.append(AnswerBody(direction, bytes(view[at : at + PIECE_BYTES]), end and last, []))
