"""The place of a value in a JSON text, to replace it and leave all else byte for byte.

`orjson` has read the text before, so it is known to be valid; this only walks it. A string ends at
the first quote that is not escaped. Where there are many, and the value is at hand, it is encoded
again and compared: if the text has exactly those characters there, the literal ends where they do.
Duplicate keys on the way are a refusal: readers differ in which of them counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import orjson

from laar.context.blocks import Refused
from laar.context.settings import Reason

MAX_STEPS = 10_000
"""Quotes, brackets and members looked at in one walk, 3 ms; a hostile body has more."""

FEW_QUOTES = 256
"""Quotes looked at in one walk, 0.05 ms, before strings are compared, 0.03 ms for 64 KB."""

MAX_DEPTH = 5
"""Levels walked with the value at hand, which is fast for long strings: messages, their parts."""

Path: TypeAlias = "tuple[str | int, ...]"
"""Keys and indexes from the top."""

Want: TypeAlias = "Mapping[str | int, Want] | None"
"""The parts of a value to find: further ones by key or index, or None for the value alone."""

_BLANKS = " \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*+")
_KEY = re.compile(r'"([^"\\]*+)"[ \t\r\n]*+:[ \t\r\n]*+')
_NEXT = re.compile(r"[ \t\r\n]*+(?:,[ \t\r\n]*+)?")
_SCALAR = re.compile(r"[^\s,\]}]++")
_STRUCTURE = re.compile(r'["\[\]{}]')


class TooComplexError(Exception):
    """The text takes too many steps to walk."""


class JsonSpans:
    """One walk over a valid JSON text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._steps = MAX_STEPS
        self._quotes = FEW_QUOTES

    def find(self, value: object, want: Want) -> dict[Path, tuple[int, int]] | None:
        """Spans of all values named in `want`, by path; others that were passed are included.

        Args:
            value: the parsed text.
            want: the values to find; all must be in `value`.

        Returns:
            None when an object on the way has a key twice.

        Raises:
            TooComplexError: after `MAX_STEPS`.
        """
        found: dict[Path, tuple[int, int]] = {}
        end = self._walk(self._space(0), value, want, (), found)
        return found if end is not None else None

    def _walk(
        self, at: int, value: object, want: Want, path: Path, found: dict[Path, tuple[int, int]]
    ) -> int | None:
        """The end of a value, noting wanted values below it; None for a key that comes twice."""
        self._step()
        end: int | None
        sign = self._text[at]
        if not want and len(path) >= MAX_DEPTH:
            end = self._skip(at)
        elif sign == '"' and isinstance(value, str):
            end = self._known(at, value)
        elif sign == "{" and isinstance(value, dict):
            end = self._object(at, value, want or {}, path, found)
        elif sign == "[" and isinstance(value, list):
            end = self._array(at, value, want or {}, path, found)
        else:
            end = self._skip(at)
        if end is not None:
            found[path] = (at, end)
        return end

    def _object(
        self,
        at: int,
        value: dict[str, object],
        want: Mapping[str | int, Want],
        path: Path,
        found: dict[Path, tuple[int, int]],
    ) -> int | None:
        text = self._text
        seen: set[str] = set()
        at = self._space(at + 1)
        while text[at] != "}":
            plain = _KEY.match(text, at)
            if plain is not None:
                self._step()
                key, at = plain[1], plain.end()
            else:
                end = self._string(at)
                key = orjson.loads(text[at:end])
                at = self._space(self._space(end) + 1)  # the colon
            if key in seen and want:
                return None
            guess = None if key in seen else value.get(key)
            seen.add(key)
            after = self._walk(at, guess, want.get(key), (*path, key), found)
            if after is None:
                return None
            at = self._next(after)
        return at + 1

    def _array(
        self,
        at: int,
        value: list[object],
        want: Mapping[str | int, Want],
        path: Path,
        found: dict[Path, tuple[int, int]],
    ) -> int | None:
        at = self._space(at + 1)
        i = 0
        while self._text[at] != "]":
            guess = value[i] if i < len(value) else None
            after = self._walk(at, guess, want.get(i), (*path, i), found)
            if after is None:
                return None
            at = self._next(after)
            i += 1
        return at + 1

    def _next(self, at: int) -> int:
        """Moves from the end of a member to the next one, or to the closing bracket."""
        match = _NEXT.match(self._text, at)
        assert match is not None
        return match.end()

    def _space(self, at: int) -> int:
        if self._text[at] not in _BLANKS:
            return at
        match = _SPACE.match(self._text, at)
        assert match is not None
        return match.end()

    def _skip(self, at: int) -> int:
        """The end of the value of any type that starts at `at`."""
        first = self._text[at]
        if first == '"':
            return self._string(at)
        if first in "[{":
            return self._container(at)
        match = _SCALAR.match(self._text, at)
        assert match is not None
        return match.end()

    def _container(self, at: int) -> int:
        depth = 0
        while True:
            self._step()
            match = _STRUCTURE.search(self._text, at)
            assert match is not None
            sign = match.group()
            if sign == '"':
                at = self._string(match.start())
                continue
            depth += 1 if sign in "[{" else -1
            at = match.end()
            if not depth:
                return at

    def _known(self, at: int, value: str) -> int:
        """The end of a string literal that should read as `value`."""
        text = self._text
        end = at
        while self._quotes:
            self._quotes -= 1
            end = text.index('"', end + 1)
            if text[end - 1] != "\\" or not self._escaped(end):
                return end + 1
        literal = orjson.dumps(value).decode()
        return at + len(literal) if text.startswith(literal, at) else self._string(at)

    def _string(self, at: int) -> int:
        """The end of a string literal."""
        end = at
        text = self._text
        while True:
            self._step()
            end = text.index('"', end + 1)
            if text[end - 1] != "\\" or not self._escaped(end):
                return end + 1

    def _escaped(self, at: int) -> bool:
        """Whether a quote is part of the string: after an odd number of backslashes."""
        text = self._text
        first = at
        while text[first - 1] == "\\":
            first -= 1
        return (at - first) % 2 == 1

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TooComplexError


def spans_of(text: str, value: object, paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Spans of the values at some paths, and of others that were passed.

    Args:
        text: valid JSON.
        value: the parsed text.
        paths: paths of the values, all of which are there.

    Raises:
        Refused: the text takes too many steps to walk, or an object on the way has a key twice.
    """
    try:
        spans = JsonSpans(text).find(value, _wanted(paths))
    except TooComplexError:
        raise Refused(Reason.TOO_COMPLEX) from None
    if spans is None:
        raise Refused(Reason.DUPLICATE_KEYS)
    return spans


class Literal(str):
    """JSON to be written as it is, rather than as a string."""

    __slots__ = ()


def raw_of(body: bytes, value: dict[str, object]) -> Callable[[Sequence[Path]], list[str]]:
    """Gives the JSON of values of a body as it was written; empty for one with duplicate keys.

    It walks the body once, however many are asked for.

    Raises:
        TooComplexError: when called, for a body that takes too many steps to walk.
    """

    def raw(paths: Sequence[Path]) -> list[str]:
        text = body.decode()
        spans = JsonSpans(text).find(value, _wanted(paths)) or {}
        return [text[slice(*spans.get(path, (0, 0)))] for path in paths]

    return raw


def _wanted(paths: Iterable[Path]) -> Want:
    """The paths merged into one; a path may continue below another."""
    want: dict[str | int, Want] = {}
    for path in paths:
        at = want
        for step in path[:-1]:
            below = at.get(step)
            if below is None:
                below = at[step] = {}
            at = below  # type: ignore[assignment]
        at.setdefault(path[-1])
    return want


def splice(body: bytes, value: dict[str, object], edits: Mapping[Path, str]) -> bytes | None:
    """A JSON body with some of its strings replaced and all other bytes as they were.

    Args:
        body: valid JSON in UTF-8.
        value: the parsed body.
        edits: new strings by path; a `Literal` is JSON itself.

    Returns:
        None when an object on the way has a key twice.

    Raises:
        TooComplexError: the body takes too many steps to walk.
    """
    text = body.decode()
    spans = JsonSpans(text).find(value, _wanted(edits))
    if spans is None:
        return None
    parts: list[bytes] = []
    done = 0
    for (start, end), new in sorted((spans[path], new) for path, new in edits.items()):
        literal = new.encode() if isinstance(new, Literal) else orjson.dumps(new)
        parts += (text[done:start].encode(), literal)
        done = end
    parts.append(text[done:].encode())
    return b"".join(parts)
