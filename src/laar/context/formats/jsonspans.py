"""Locate values in a JSON text, so that some can be replaced and all other bytes kept.

The text is known to be valid, since `orjson` has parsed it; Python's decoder skips values that are
not needed. A duplicate key on a path is refused, because parsers differ in which one they use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import orjson

from laar.context.blocks import SkippedText
from laar.context.settings import Reason

MAX_VALUES = 1 << 16
"""Maximum number of commas and opening brackets in a text (4 ms); only hostile bodies have more."""

Path: TypeAlias = "tuple[str | int, ...]"
"""Keys and indexes from the root."""

_Want: TypeAlias = "dict[str | int, _Want]"
"""The values to find inside a value, by key or index; empty for the value itself."""

_SPACE = re.compile(r"[ \t\r\n]*+")
_COLON = re.compile(r"[ \t\r\n]*+:[ \t\r\n]*+")
_NEXT = re.compile(r"[ \t\r\n]*+(?:,[ \t\r\n]*+)?")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # `int` rejects very long numbers


def spans_of(text: str, paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the spans of the values at the paths, and of their ancestors.

    Raise `SkippedText` if there are too many values or levels, or an ancestor has a duplicate key.

    Args:
        text: valid JSON.
        paths: paths of existing values.
    """
    if len(text) > MAX_VALUES and sum(map(text.count, ",[{")) > MAX_VALUES:
        raise SkippedText(Reason.TOO_COMPLEX)
    wanted: _Want = {}
    for path in paths:  # one path may be the start of another
        at = wanted
        for step in path:
            at = at.setdefault(step, {})
    found: dict[Path, tuple[int, int]] = {}
    try:
        _walk(text, _after(_SPACE, text, 0), wanted, (), found)
    except RecursionError:
        raise SkippedText(Reason.TOO_COMPLEX) from None
    return found


def _walk(
    text: str, start: int, want: _Want, path: Path, found: dict[Path, tuple[int, int]]
) -> int:
    """Return the end of a value; record its span and the wanted spans below it."""
    end = start
    if not want:
        end = _DECODER.raw_decode(text, start)[1]
    else:
        names: set[str] = set()
        name: str | int = -1
        at, is_object = _after(_SPACE, text, start + 1), text[start] == "{"
        while text[at] not in "}]":
            if is_object:
                name, at = _DECODER.raw_decode(text, at)
                if name in names:
                    raise SkippedText(Reason.DUPLICATE_KEYS)
                names.add(str(name))
                at = _after(_COLON, text, at)
            else:
                name = int(name) + 1
            at = _after(_NEXT, text, _walk(text, at, want.get(name, {}), (*path, name), found))
        end = at + 1
    found[path] = start, end
    return end


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class Literal(str):
    """JSON to be written as is, instead of as a string."""

    __slots__ = ()


def raw_values(body: bytes, paths: Sequence[Path]) -> list[str]:
    """Return the raw JSON of values in a body, in one walk; raise like `spans_of`."""
    text = body.decode()
    spans = spans_of(text, paths)
    return [text[slice(*spans[path])] for path in paths]


def splice(body: bytes, edits: Mapping[Path, str]) -> bytes:
    """Return a JSON body with some strings replaced and all other bytes unchanged.

    Args:
        body: valid JSON in UTF-8.
        edits: new strings by path; a `Literal` is inserted as JSON.

    Raises:
        Refused: as in `spans_of`.
    """
    text = body.decode()
    spans = spans_of(text, edits)
    parts: list[bytes] = []
    done = 0
    for (start, end), new in sorted((spans[path], new) for path, new in edits.items()):
        literal = new.encode() if isinstance(new, Literal) else orjson.dumps(new)
        parts += (text[done:start].encode(), literal)
        done = end
    parts.append(text[done:].encode())
    return b"".join(parts)
