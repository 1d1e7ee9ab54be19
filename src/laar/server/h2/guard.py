"""Stands before the HTTP/2 library: looks at each frame's nine bytes of header, and nothing more.

The library knows which frames peers may send, but sets no price on them. So here are the limits on
frames: their length before they are buffered, header blocks, and floods of frames that cost work
and bring nothing (CVE-2019-9511 to -9518, CVE-2023-44487, CVE-2024-27316 and their like). A
GOAWAY is taken out: the library would end the connection at once, where open streams may go on.
Frames that `Library.takes` go around the library.

Pure: time is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

FRAME_HEAD = struct.Struct(">HBBBL")
"""A frame's header: its length in two parts, type, flags, stream."""

MAX_FRAME_BYTES = 1 << 18
"""Longest frame. 16 KB is the least that HTTP/2 allows; large bodies cost less in fewer frames."""

MAX_HEADER_BLOCK_BYTES = 1 << 16
"""Longest compressed header block, continuations included."""

MAX_CONTINUATIONS = 8
"""The longest header block in frames of 16 KB is four."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_STREAM_ID = 0x7FFFFFFF
_END_HEADERS, _ACK = 0x4, 0x1

_LIBRARY, _NOBODY = 0, -1
"""Takers of frames, beside the streams."""

_LIBRARY_BYTES = 4096
"""Most bytes of several frames that the library is given at once, so that a turn can end."""

_SMALL_DATA_BYTES = 256
"""Data frames below this are free only as far as they complete messages."""


class Frame:
    """Types of frames: numbers, since reading a member of an enum takes 0.1 us."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    GOAWAY = 7
    CONTINUATION = 9


LIBRARY = -1
"""Stands for a type where bytes are for the library."""

_AROUND = {Frame.DATA: 0, Frame.HEADERS: _END_HEADERS, Frame.RST_STREAM: 0}
"""Frame types that may bypass the library, with the flags that are allowed."""

_FREE = {Frame.DATA: _SMALL_DATA_BYTES, Frame.HEADERS: 0, Frame.RST_STREAM: 0}
"""Least length of such a frame that needs no judgement: resets are judged by `Connection`."""


class FloodError(Exception):
    """The peer exceeds a limit; the connection is to be closed."""


class Budget:
    """The number of events of a kind that are taken: a burst, and then a steady rate.

    Args:
        burst: events that are taken at once.
        per_s: events that are taken each second.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def spend(self, now: float, earned: int = 0) -> bool:
        """Spend one, after adding those `earned` by useful events; return False if none is left.

        There are never more than the burst.
        """
        if earned:
            self._left = min(self._burst, self._left + earned)
        elif self._left < 1.0:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left < 1.0:
                return False
        self._left -= 1.0
        return True


class Share:
    """An amount of which each connection may have as much as is left free.

    So one alone has half, and a newcomer finds room however many have taken what they may.

    Args:
        most: the amount for all connections together.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0

    def take(self, count: int, mine: int) -> bool:
        """Count what a connection takes or gives back; return False beyond its share.

        Args:
            count: the change.
            mine: all that the connection has now.
        """
        self._taken += count
        return mine <= self.most - self._taken


def _takes_none(_kind: int, _stream_id: int, _length: int) -> bool:
    return False


class Guard:
    """One connection's frames, as they come.

    Args:
        now: monotonic seconds.
        takes: whether a frame as in `_AROUND` goes around the library, by its kind, stream and
            length; DATA is then off the windows.
    """

    def __init__(self, now: float, takes: Callable[[int, int, int], bool] = _takes_none) -> None:
        self._takes = takes
        self._head = b""  # the beginning of a frame's header
        self._rest_bytes = 0  # of a frame that has begun
        self._taker = _LIBRARY  # of that frame
        self._preface_bytes = _PREFACE_BYTES
        self._block_bytes = 0
        self._continuations = 0
        self._idle = Budget(8000, 2000, now)
        self._settings = Budget(100, 1, now)
        self.leaving = False
        """The peer sent GOAWAY: it opens no more streams."""
        self.messages = 0
        """Messages since a frame was last charged; their window updates are no flood."""

    def feed(self, data: bytes, now: float) -> Iterator[tuple[int, int, bytes]]:
        """Look at the bytes.

        Yields:
            A kind of frame, its stream and what goes around the library: a piece of DATA, or all of
            another frame. Or `LIBRARY`, 0 and bytes for it. Each is to be handled before the next
            is asked for.

        Raises:
            FloodError: a limit is exceeded.
        """
        if self._head:
            data, self._head = self._head + data, b""
        end = len(data)
        at = min(self._preface_bytes, end)
        self._preface_bytes -= at
        since = 0  # from there to `at` are the bytes that the library has not seen
        while at < end:
            if self._rest_bytes:
                start, at = at, min(at + self._rest_bytes, end)
                self._rest_bytes -= at - start
                if self._taker != _LIBRARY:
                    since = at
                    if self._taker != _NOBODY:
                        yield Frame.DATA, self._taker, data[start:at]
                continue
            if end - at < _HEAD_BYTES:
                self._head = data[at:]
                end = at
                break
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, at)
            length = (high << 8) | low
            is_plain = _AROUND.get(kind) == flags
            if not is_plain or not _FREE[kind] <= length <= MAX_HEADER_BLOCK_BYTES:
                self._judge(kind, flags, length, now)
            self._taker = _LIBRARY
            body = at + _HEAD_BYTES
            if is_plain or kind == Frame.GOAWAY:
                if since < at:
                    yield LIBRARY, 0, data[since:at]
                since = at
                stream_id &= _STREAM_ID
                whole = length <= end - body
                if kind == Frame.GOAWAY:
                    self._taker = _NOBODY
                    since = body
                elif (whole or kind == Frame.DATA) and self._takes(kind, stream_id, length):
                    since = body
                    if whole:
                        since = at = body + length
                        yield kind, stream_id, data[body:at]
                        continue
                    self._taker = stream_id
            elif at - since > _LIBRARY_BYTES:
                yield LIBRARY, 0, data[since:at]
                since = at
            self._rest_bytes = length
            at = body
        if since < end:
            yield LIBRARY, 0, data[since:end]

    def _judge(self, kind: int, flags: int, length: int, now: float) -> None:
        """Judge a frame by its header; most are free of it (`_FREE`)."""
        if length > MAX_FRAME_BYTES:
            raise FloodError("a frame is too long")
        if kind == Frame.GOAWAY:
            self.leaving = True
            return
        if kind == Frame.DATA:
            if length >= _SMALL_DATA_BYTES:
                return
        elif kind in (Frame.HEADERS, Frame.CONTINUATION):
            self._header_block(kind, flags, length)
            if kind == Frame.HEADERS:
                return
        elif kind == Frame.RST_STREAM:
            return  # judged by its resets
        elif kind == Frame.SETTINGS and not flags & _ACK:
            if not self._settings.spend(now):  # each may touch all streams
                raise FloodError("too many changes of settings")
            return
        earned, self.messages = 4 * self.messages, 0
        if not self._idle.spend(now, earned):
            raise FloodError("too many frames that carry nothing")

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
