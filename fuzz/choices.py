"""Text that is nearly right, made of fuzzed bytes: a parser gets further in it than in noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Choices", "json_text"]

_KEYS = (
    b'"model"',
    b'"messages"',
    b'"prompt"',
    b'"input"',
    b'"content"',
    b'"role"',
    b'"text"',
    b'"tools"',
    b'"stream"',
    b'"max_tokens"',
    b'"cache_salt"',
    b'"priority"',
    b'"\\u006dodel"',
    b'"m\\u006fdel"',
    b'"model_"',
    b'"a\\"model"',
    b'"\\\\"',
    b'""',
)
_SCALARS = (
    b"null",
    b"true",
    b"false",
    b"0",
    b"-1",
    b"1.5e3",
    b"1e400",
    b"NaN",
    b"-Infinity",
    b"99999999999999999999999",
    b'"auto"',
    b'"m"',
    b'"user"',
    b'"system"',
    b'""',
    b'"\\ud800"',
    b'"\\u00e9\\n\\\\"',
    b'"\\"model\\": \\"x\\""',
    '"\u65e5\u672c \U0001f600"'.encode(),
    b'"\xed\xa0\x80"',
    b'"{}[],:"',
)
_BLANKS = (b"", b"", b"", b" ", b"\n", b"\t ", b"\r\n")
_SLIPS = (b"", b",", b'"', b"}", b"{", b"]", b"[", b":", b"\\", b"\x00", b"\xff", b"\xef\xbb\xbf")
_MAX_DEPTH = 6
_DEEP = (1, 2, 3, 5, 100, 300, 1200)


class Choices:
    """Draws from bytes; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __len__(self) -> int:
        return max(0, len(self._data) - self._at)

    def number(self, below: int) -> int:
        """One of ``0 .. below - 1``."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % below

    def one(self, of: Sequence[bytes]) -> bytes:
        """One of several."""
        return of[self.number(len(of))]

    def rest(self) -> bytes:
        """All that is left."""
        at, self._at = self._at, len(self._data)
        return self._data[at:]

    def some(self, most: int) -> bytes:
        """A few bytes as they are."""
        count = self.number(most + 1)
        piece = self._data[self._at : self._at + count]
        self._at += len(piece)
        return piece


def json_text(choices: Choices) -> bytes:
    """A JSON object, with a slip now and then."""
    return _object(choices, 0) + choices.one(_BLANKS)


def _value(choices: Choices, depth: int) -> bytes:
    kind = choices.number(8) if depth < _MAX_DEPTH else 0
    if kind == 5:
        return _object(choices, depth + 1)
    if kind == 6:
        return _list(choices, depth + 1)
    if kind == 7:
        count = _DEEP[choices.number(len(_DEEP))]
        return b"[" * count + b"]" * count
    return choices.one(_SCALARS)


def _object(choices: Choices, depth: int) -> bytes:
    def member() -> bytes:
        key, colon = choices.one(_KEYS), choices.one(_BLANKS) + b":" + choices.one(_BLANKS)
        return key + colon + _value(choices, depth)

    return b"{" + _several(choices, member) + b"}"


def _list(choices: Choices, depth: int) -> bytes:
    return b"[" + _several(choices, lambda: _value(choices, depth)) + b"]"


def _several(choices: Choices, make: Callable[[], bytes]) -> bytes:
    parts = [make() for _ in range(choices.number(6))]
    slip = choices.one(_SLIPS) if choices.number(64) == 1 else b""
    return choices.one(_BLANKS) + b",".join(parts) + slip
