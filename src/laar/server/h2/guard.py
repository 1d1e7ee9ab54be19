"""The guard in front of the HTTP/2 library; it reads only each frame's nine-byte header.

The library checks which frames peers may send, but does not limit their cost. The guard limits the
length of frames, before they are buffered, and of header blocks, and the number of frames that
cause useless work (CVE-2019-9511 to -9518, CVE-2023-44487, CVE-2024-27316 and the like). It removes
GOAWAY frames: the library would close the connection at once, although open streams may continue.
Frames that `Library.takes` accepts bypass the library.

No I/O: time is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

_HEAD = struct.Struct(">HBHL")
"""A frame's header: its length in two parts, type and flags, stream id."""

MAX_FRAME_BYTES = 1 << 18
"""Maximum frame length. HTTP/2 requires at least 16 KB; long bodies cost less in fewer frames."""

MAX_HEADER_BLOCK_BYTES = 1 << 16
"""Maximum length of a compressed header block, including continuations."""

MAX_CONTINUATIONS = 8
"""Maximum continuations of a header block; the longest block takes four 16 KB frames."""

_PREFACE_BYTES = 24
_TLS = b"\x16"
"""First byte of a TLS handshake."""
_HEAD_BYTES = 9
_STREAM_ID = 0x7FFFFFFF
_END_HEADERS, _ACK = 0x4, 0x1

_LIBRARY, _NOBODY = 0, -1
"""Where a frame's bytes go if not to a stream."""

_LIBRARY_BYTES = 4096
"""Maximum bytes of frames passed to the library at once, so that a turn can end in between."""

PAID_FRAMES, _BURST_FRAMES = 4, 8000
"""Number of frames without content allowed for each message, and allowed as a burst."""

_SMALL_DATA_BYTES = 256
"""Minimum length of DATA frames that are free; shorter ones are charged."""

_HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _CONTINUATION = 1, 3, 4, 7, 9

DATA, HEADERS, RST_STREAM = 0, _HEADERS << 8 | _END_HEADERS, _RST_STREAM << 8
"""Types of the frames that may bypass the library, each with the flags it must have."""

LIBRARY = -1
"""Yielded instead of a frame's type and flags if the bytes are for the library."""

_FREE = {DATA: _SMALL_DATA_BYTES, HEADERS: 0, RST_STREAM: 0}
"""Minimum length at which such frames need not be checked by `_judge`."""

_LONG = (_HEADERS, _RST_STREAM, _SETTINGS)
"""Types of frames that the library gets one by one, since each may take a good part of a turn."""


class FloodError(Exception):
    """The peer exceeded a limit; the connection must be closed."""


class Budget:
    """A token bucket for one kind of event: a burst, then a steady rate. Time is monotonic."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def spend(self, now: float, earned: int = 0) -> bool:
        """Spend one event, after adding those `earned`; return False if none remains.

        The budget never exceeds the burst.
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


class BufferShare:
    """A total that connections share; each may take at most as much as it leaves for others.

    A lone connection may thus take half, and a new one can always take some.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0

    def take(self, count: int, mine: int) -> bool:
        """Add `count` to the total; return False if `mine`, a connection's part, is too large."""
        self._taken += count
        return mine <= self.most - self._taken


_NO_TLS = (
    "the peer speaks TLS, and this port does not: set listen.tls, or let the peer use plaintext"
)


class Guard:
    """Inspects one connection's frames as they arrive.

    Args:
        takes: returns whether a frame (`DATA`, `HEADERS` or `RST_STREAM`) bypasses the library,
            given its type, stream and length; if so, it subtracts DATA from the windows.
    """

    def __init__(self, now: float, takes: Callable[[int, int, int], bool]) -> None:
        self._takes = takes
        self._head = b""  # an incomplete frame header
        self._rest_bytes = 0  # left in the current frame
        self._taker = _LIBRARY  # recipient of that frame
        self._preface_bytes = _PREFACE_BYTES
        self._block_bytes = 0
        self._continuations = 0
        self._idle = Budget(_BURST_FRAMES, 2000, now)
        self._settings = Budget(100, 1, now)
        self.leaving = False
        """The peer sent GOAWAY: it opens no more streams."""
        self.paid_frames = 0
        """Frames earned by messages (`PAID_FRAMES` each) since a frame was last charged."""

    def feed(self, data: bytes, now: float) -> Iterator[tuple[int, int, bytes]]:
        """Inspect received bytes.

        Yield a frame's type and flags, its stream and bytes that bypass the library (a piece of
        DATA, or the payload of another frame); or `LIBRARY`, 0 and bytes for the library. Handle
        each before requesting the next. Raise `FloodError` if a limit is exceeded.
        """
        if self._head:
            data, self._head = self._head + data, b""
        end = len(data)
        if self._preface_bytes == _PREFACE_BYTES and data[:1] == _TLS:
            raise FloodError(_NO_TLS)
        at = min(self._preface_bytes, end)
        self._preface_bytes -= at
        since = 0  # data[since:at] has not been passed to the library yet
        while at < end:
            if self._rest_bytes:
                start, at = at, min(at + self._rest_bytes, end)
                self._rest_bytes -= at - start
                if self._taker != _LIBRARY:
                    since = at
                    if self._taker != _NOBODY:
                        yield DATA, self._taker, data[start:at]
                continue
            if end - at < _HEAD_BYTES:
                self._head = data[at:]
                end = at
                break
            high, low, kind, stream_id = _HEAD.unpack_from(data, at)
            length = (high << 8) | low
            free_bytes = _FREE.get(kind, -1)
            if length < free_bytes and 0 < self.paid_frames < _BURST_FRAMES:
                self.paid_frames -= 1
            elif not 0 <= free_bytes <= length <= MAX_HEADER_BLOCK_BYTES:
                self._judge(kind >> 8, kind & 0xFF, length, now)
            self._taker = _LIBRARY
            body = at + _HEAD_BYTES
            if free_bytes >= 0 or kind >> 8 == _GOAWAY:
                if since < at:
                    yield LIBRARY, 0, data[since:at]
                since = at
                stream_id &= _STREAM_ID
                whole = length <= end - body
                if free_bytes < 0:
                    self._taker = _NOBODY
                    since = body
                elif (whole or kind == DATA) and self._takes(kind, stream_id, length):
                    since = body
                    if whole:
                        since = at = body + length
                        yield kind, stream_id, data[body:at]
                        continue
                    self._taker = stream_id
            elif since < at and (at - since > _LIBRARY_BYTES or kind >> 8 in _LONG):
                yield LIBRARY, 0, data[since:at]
                since = at
            self._rest_bytes = length
            at = body
        if since < end:
            yield LIBRARY, 0, data[since:end]

    def _judge(self, kind: int, flags: int, length: int, now: float) -> None:
        """Check and charge a frame by its header; most frames need neither (`_FREE`)."""
        if length > MAX_FRAME_BYTES:
            raise FloodError("a frame is too long")
        if kind == _GOAWAY:
            self.leaving = True
            return
        if kind == _RST_STREAM or (kind == DATA and length >= _SMALL_DATA_BYTES):
            return  # `Connection` limits resets
        if kind in (_HEADERS, _CONTINUATION):
            is_first = kind == _HEADERS
            self._continuations = 0 if is_first else self._continuations + 1
            self._block_bytes = length if is_first else self._block_bytes + length
            too_long = self._block_bytes > MAX_HEADER_BLOCK_BYTES
            if too_long or self._continuations > MAX_CONTINUATIONS:
                raise FloodError("a header block is too long")
            if is_first:
                return
        elif kind == _SETTINGS and not flags & _ACK:
            if not self._settings.spend(now):  # each change may affect all streams
                raise FloodError("too many changes of settings")
            return
        earned, self.paid_frames = self.paid_frames, 0
        if not self._idle.spend(now, earned):
            raise FloodError("too many frames that carry nothing")
