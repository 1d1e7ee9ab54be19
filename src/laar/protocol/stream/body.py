"""Collect request bodies under a common byte limit, and send bodies in chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laar.protocol.events import Action, AnswerBody, Direction

CHUNK_BYTES = 62_000
"""Maximum body bytes per message in the gateway shape: some Envoys limit a chunk, including the
frame, to 64 KiB."""

_SLOW_BYTES, _SLOW_S = 160 << 10, 10.0
"""A body may be evicted if its last `_SLOW_BYTES` took longer than `_SLOW_S`. Even a poor mobile
connection is faster; at this rate, 32 MB would take half an hour."""

_LOOK_EVERY_S = 1.0


class HeldBytes:
    """Counts the bytes held by all streams for bodies that are incomplete or waiting to be read.

    At the limit, slow incomplete bodies are evicted, largest first. Otherwise a few clients that
    never finish their bodies would block all others. `limit_bytes` may be changed.
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
            largest = max(slow, key=lambda upload: upload.held_bytes)
            largest.gave_way = True  # the request is refused on its next event
            largest.take()
        self.now_bytes += count
        body.held_bytes += count
        if body.held_bytes and not (body.is_complete or body.stays):
            self._growing[body] = None
        return True

    def give_back(self, body: Collected) -> None:
        """Release the bytes reserved for a body."""
        self.now_bytes -= body.held_bytes
        body.held_bytes = 0
        self._growing.pop(body, None)


@dataclass(slots=True, eq=False)
class Collected:
    """A request's body while it is received.

    Args:
        held: counts the bytes of all streams; None means no limit.
        data: the bytes collected, possibly empty; None if there is no body.
        size_bytes: bytes received, including dropped ones; after a change, the new body's size.
        is_complete: the whole body was received.
        changed: the body differs from the client's.
        held_bytes: bytes counted in `held`.
        stays: it is never evicted, since it is forwarded whatever the decision is.
        gave_way: the body was evicted to make room for others.
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
    _marked_at: float = 0.0
    _marked_bytes: int = 0

    def add(self, data: bytes) -> None:
        """Append a chunk to a single buffer: objects for tiny chunks would take 40 bytes each."""
        self.size_bytes += len(data)
        if self.data is None:
            self.data = data
        else:
            if isinstance(self.data, bytes):
                self.data = bytearray(self.data)
            self.data += data

    def hold(self, count: int, now: float) -> bool:
        """Count bytes toward the common limit until `release`; return False if it is exceeded."""
        if not self.held_bytes or self.size_bytes - self._marked_bytes >= _SLOW_BYTES:
            self._marked_at, self._marked_bytes = now, self.size_bytes
        return self.held is None or self.held.take(self, count, now)

    def is_slow(self, now: float) -> bool:
        """Return whether the body arrives more slowly than real clients send, or has stalled."""
        return now - self._marked_at > _SLOW_S

    def release(self) -> None:
        """Stop counting this body: it was read or is no longer needed."""
        if self.held is not None and self.held_bytes:
            self.held.give_back(self)

    def replace(self, data: bytes) -> None:
        """Replace the complete body."""
        self.data, self.changed = data, True
        self.size_bytes = len(data)

    def take(self) -> bytes | None:
        """Return the collected bytes and drop them."""
        data, self.data = self.data, None
        self.release()
        return None if data is None else bytes(data)


def send_chunks(direction: Direction, data: bytes, *, end: bool, out: list[Action]) -> None:
    """Append actions that send a body in chunks; an empty body is one empty chunk."""
    for at in range(0, max(len(data), 1), CHUNK_BYTES):
        last = at + CHUNK_BYTES >= len(data)
        out.append(AnswerBody(direction, data[at : at + CHUNK_BYTES], end and last))
