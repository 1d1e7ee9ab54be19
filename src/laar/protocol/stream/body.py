"""The request's body while it is collected, the limit on all such bodies, and bodies in pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laar.protocol.events import Action, AnswerBody, Direction

PIECE_BYTES = 62_000
"""Longest piece of a body in one message of the gateway shape: some Envoys cap a piece at 64 KiB,
and the frame around it needs room."""


_SLOW_BYTES_PER_S = 16 << 10
"""A body that comes more slowly gives way: a poor mobile link is faster, and 32 MB would take half
an hour."""

_WINDOW_S = 10.0
"""Seconds over which a body's rate is measured."""

_LOOK_EVERY_S = 1.0


class HeldBytes:
    """Bytes of bodies, unfinished or waiting to be read, that all streams together hold.

    Where they are at their limit, unfinished bodies that hardly grow give way, the largest first: a
    few clients that send a body but for its end would have all others refused.

    Args:
        limit_bytes: most bytes held; may be changed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.now_bytes = 0
        self._growing: dict[Collected, None] = {}
        self._look_at = -math.inf

    def take(self, body: Collected, count: int, now: float) -> bool:
        """Reserve `count` more bytes for a body; return False if that exceeds the limit."""
        while self.now_bytes + count > self.limit_bytes:
            if now < self._look_at:
                return False
            slow = [
                upload for upload in self._growing if upload is not body and upload.is_slow(now)
            ]
            if not slow:
                self._look_at = now + _LOOK_EVERY_S
                return False
            max(slow, key=lambda upload: upload.held_bytes).give_way()
        self.now_bytes += count
        if not (body.is_complete or body.stays):
            self._growing[body] = None
        return True

    def give_back(self, body: Collected) -> None:
        """Release the bytes reserved for a body."""
        self.now_bytes -= body.held_bytes
        self._growing.pop(body, None)


@dataclass(slots=True, eq=False)
class Collected:
    """One request's body, as far as it has arrived.

    Args:
        held: counts the bytes collected by all streams; None sets no limit.
        data: the bytes collected, possibly none; None where no body came.
        size_bytes: bytes of all that came, dropped or not; of the changed body once there is one.
        is_complete: nothing of it is still to come.
        trailers: trailers follow it.
        changed: it differs from the client's.
        held_bytes: bytes counted among those of all streams.
        stays: it never gives way: it is to pass, whatever becomes of the decision.
        gave_way: its bytes are gone, since they were needed for others.
    """

    held: HeldBytes | None = None
    data: bytes | bytearray | None = None
    size_bytes: int = 0
    is_complete: bool = False
    trailers: bool = False
    changed: bool = False
    held_bytes: int = 0
    stays: bool = False
    gave_way: bool = False
    _window_at: float = math.nan
    _window_bytes: int = 0
    _speed: float = math.inf

    def add(self, data: bytes) -> None:
        """Add a piece of the body to one buffer: a piece of one byte is 40 as an object."""
        self.size_bytes += len(data)
        if self.data is None:
            self.data = data
        else:
            if isinstance(self.data, bytes):
                self.data = bytearray(self.data)
            self.data += data

    def hold(self, count: int, now: float) -> bool:
        """Count bytes among those of all streams until `release`; False beyond their limit."""
        if not now - self._window_at < _WINDOW_S:
            if self.held_bytes:
                self._speed = self._speed_at(now)
            self._window_at, self._window_bytes = now, self.size_bytes
        if self.held is None:
            return True
        if not self.held.take(self, count, now):
            return False
        self.held_bytes += count
        return True

    def is_slow(self, now: float) -> bool:
        """Return whether less has come recently than any client with a body to send would send."""
        full = now - self._window_at >= _WINDOW_S
        return (self._speed_at(now) if full else self._speed) < _SLOW_BYTES_PER_S

    def _speed_at(self, now: float) -> float:
        return (self.size_bytes - self._window_bytes) / (now - self._window_at)

    def give_way(self) -> None:
        """Drop what has come, for other bodies; the stream is to be refused at its next event."""
        self.gave_way = True
        self.take()

    def release(self) -> None:
        """Count this body no longer: it is complete, read, or not wanted any more."""
        if self.held is not None and self.held_bytes:
            self.held.give_back(self)
            self.held_bytes = 0

    def complete(self) -> bytes:
        """Return the complete body; an empty one where none came."""
        if self.held_bytes:
            self.release()
        self.is_complete = True
        data = self.data = bytes(self.data or b"")
        return data

    def replace(self, data: bytes) -> None:
        """Put another body in the place of the complete one."""
        self.data, self.changed = data, True
        self.size_bytes = len(data)

    def take(self) -> bytes | None:
        """Return the bytes collected, and keep them no longer."""
        data, self.data = self.data, None
        self.release()
        return None if data is None else bytes(data)


def send_pieces(direction: Direction, data: bytes, *, end: bool, out: list[Action]) -> None:
    """Add a body in pieces that Envoy takes; an empty one is one empty piece."""
    for at in range(0, max(len(data), 1), PIECE_BYTES):
        last = at + PIECE_BYTES >= len(data)
        out.append(AnswerBody(direction, data[at : at + PIECE_BYTES], end and last, []))
