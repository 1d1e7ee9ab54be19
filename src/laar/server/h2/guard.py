"""Stands before the HTTP/2 library: looks at each frame's nine bytes of header, and nothing more.

The library is correct about what peers may say, but sets no price on it. So here are the limits on
frames: their length before they are buffered, header blocks, and floods of frames that cost work
and bring nothing (CVE-2019-9511 to -9518, CVE-2023-44487, CVE-2024-27316 and their like). A
GOAWAY is taken out: the library would end the connection at once, where open streams may go on.

Pure: time is an argument.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["MAX_FRAME_BYTES", "MAX_HEADER_BLOCK_BYTES", "Budget", "FloodError", "Guard"]

MAX_FRAME_BYTES = 1 << 18
"""Longest frame. 16 KB is the least that HTTP/2 allows; large bodies cost less in fewer frames."""

MAX_HEADER_BLOCK_BYTES = 1 << 16
"""Longest compressed header block, continuations included."""

MAX_CONTINUATIONS = 8
"""The longest header block in frames of 16 KB is four."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_END_HEADERS, _ACK = 0x4, 0x1

_SMALL_DATA_BYTES = 256
"""Data frames below this are free only as far as they complete messages."""


class Frame(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    GOAWAY = 7
    CONTINUATION = 9


class FloodError(Exception):
    """The peer exceeds a limit; the connection is to be closed."""


class Budget:
    """How many events of a kind are taken: a burst, and then a steady rate.

    Args:
        burst: at once.
        per_s: each second.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def spend(self, now: float) -> bool:
        """Takes one; False where none is left."""
        if self._left < 1.0:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left < 1.0:
                return False
        self._left -= 1.0
        return True

    def earn(self, count: float) -> None:
        """Gives some back, for what was of use."""
        self._left = min(self._burst, self._left + count)


class Guard:
    """One connection's frames, as they come.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._skip_bytes = 0  # of a frame that is let through
        self._drop_bytes = 0  # of one that is not
        self._head = b""
        self._preface_bytes = _PREFACE_BYTES
        self._block_bytes = 0
        self._continuations = 0
        self._idle = Budget(8000, 2000, now)
        self._settings = Budget(100, 1, now)
        self.leaving = False
        """The peer said GOAWAY: it opens no more streams."""

    def useful(self) -> None:
        """A message was taken or written: the window updates around it are no flood."""
        self._idle.earn(4)

    def feed(self, data: bytes, now: float) -> bytes:
        """Looks at the bytes; those that the library is to see.

        Raises:
            FloodError: a limit is exceeded.
        """
        end = len(data)
        at = 0
        if self._preface_bytes:
            at = min(self._preface_bytes, end)
            self._preface_bytes -= at
        pieces: list[bytes] | None = None  # only where something is cut out or held back
        since = 0
        while at < end:
            if self._skip_bytes:
                step = min(self._skip_bytes, end - at)
                self._skip_bytes -= step
                at += step
                continue
            if self._drop_bytes:
                step = min(self._drop_bytes, end - at)
                self._drop_bytes -= step
                at += step
                since = at
                continue
            if self._head or end - at < _HEAD_BYTES:  # a header that two reads share
                if pieces is None:
                    pieces = []
                if not self._head and at > since:
                    pieces.append(data[since:at])
                missing = _HEAD_BYTES - len(self._head)
                self._head += data[at : at + missing]
                at = since = min(at + missing, end)
                if len(self._head) < _HEAD_BYTES:
                    break
                head, self._head = self._head, b""
                if self._frame(head, 0, now):
                    pieces.append(head)
                continue
            passes = self._frame(data, at, now)
            if not passes:
                if pieces is None:
                    pieces = []
                pieces.append(data[since:at])
                since = at + _HEAD_BYTES
            at += _HEAD_BYTES
        if pieces is None:
            return data if since == 0 else data[since:]
        if since < end:
            pieces.append(data[since:end])
        return b"".join(pieces)

    def _frame(self, data: bytes, at: int, now: float) -> bool:
        """Judges a frame by its header; False where the library is not to see it."""
        length = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2]
        kind, flags = data[at + 3], data[at + 4]
        if length > MAX_FRAME_BYTES:
            raise FloodError("a frame is too long")
        if kind == Frame.GOAWAY:
            self.leaving = True
            self._drop_bytes = length
            return False
        self._skip_bytes = length
        if kind == Frame.DATA:
            if length >= _SMALL_DATA_BYTES:
                return True
        elif kind in (Frame.HEADERS, Frame.CONTINUATION):
            self._header_block(kind, flags, length)
            if kind == Frame.HEADERS:
                return True
        elif kind == Frame.RST_STREAM:
            return True  # judged by what it resets
        elif kind == Frame.SETTINGS and not flags & _ACK:
            if not self._settings.spend(now):  # each may touch all streams
                raise FloodError("too many changes of settings")
            return True
        if not self._idle.spend(now):
            raise FloodError("too many frames that carry nothing")
        return True

    def _header_block(self, kind: int, flags: int, length: int) -> None:
        if kind == Frame.HEADERS:
            self._block_bytes = self._continuations = 0
        else:
            self._continuations += 1
        self._block_bytes += length
        if self._block_bytes > MAX_HEADER_BLOCK_BYTES or self._continuations > MAX_CONTINUATIONS:
            raise FloodError("a header block is too long")
        if flags & _END_HEADERS:
            self._block_bytes = self._continuations = 0
