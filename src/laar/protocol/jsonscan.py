"""Locate the members of a JSON object without a parser: no recursion, any depth.

A parser is fast but builds every value; this scanner builds none. Use it for texts with so many
values that building them would delay other requests, for texts nested deeper than a parser
supports, and to locate a value in the bytes. It finds quotes, escapes and brackets with numpy, one
piece at a time, so that a scanning thread lets others run.

The text is not validated. For text that is not JSON the result is meaningless, without an error.
"""

from __future__ import annotations

import json
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 256 << 10
"""Number of bytes scanned at a time, in about 2 ms."""

MAX_PARTS = 200_000
"""Maximum number of JSON values in a text to be parsed, as `has_many_parts` estimates it. Parsing
that many takes 30 ms, during which no other request is served, even if a thread parses. Ten million
characters of prose contain fewer."""

FEW_PARTS_BYTES = 512 << 10
"""Texts up to this size never take longer to parse than `MAX_PARTS` values."""

MAX_MEMBERS = 10_000
"""Number of members from which an object is rejected; the largest API has about 60."""

_BLANKS = b" \t\r\n"
_MAX_KEY_BYTES = 1024

Span: TypeAlias = tuple[int, int]
"""Start and end offsets; the end is exclusive."""

_Mask: TypeAlias = NDArray[np.bool_]

_STEP = np.zeros(256, np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1
_SEPARATES = np.zeros(256, np.bool_)
_SEPARATES[[ord(","), ord(":")]] = True


def has_many_parts(text: bytes) -> bool:
    """Return whether parsing a text would block other requests for too long.

    Punctuation in strings is counted too, at its usual share in prose.
    """
    parts = 0
    for at in range(0, len(text) if len(text) > FEW_PARTS_BYTES else 0, PIECE_BYTES):
        piece = np.frombuffer(text, np.uint8, min(PIECE_BYTES, len(text) - at), at)
        brace, bracket, quote, comma = (int(np.count_nonzero(piece == mark)) for mark in b'{[",')
        parts += brace + 2 * bracket + (quote + comma) // 4
        if parts > MAX_PARTS:
            return True
    return False


def member_spans(text: bytes) -> dict[str, Span] | None:
    """Return the spans of the outermost object's values, by key: the last of any repeated keys.

    Returns:
        None if the text is not exactly one object, or it has `MAX_MEMBERS` or more members.
    """
    marks = _marks(text)
    if marks is None or len(marks) < 2:
        return None
    found: dict[str, Span] = {}
    before, colon = marks[0], -1
    for mark in marks[1:]:
        sign = text[mark]
        if sign == ord(":"):
            colon = mark
        elif colon > before:
            key = _key(text[before + 1 : min(colon, before + _MAX_KEY_BYTES)])
            if key is not None:
                found[key] = _stripped(text, colon + 1, mark)
            before = mark
        elif sign == ord(",") or text[before + 1 : mark].strip(_BLANKS):
            return None  # a member without a value
    return found


def _marks(text: bytes) -> list[int] | None:
    """Return the offsets of the outermost object's braces and of its members' commas and colons."""
    found: list[int] = []
    depth, quoted, escaped = 0, False, False
    for at in range(0, len(text), PIECE_BYTES):
        piece = np.frombuffer(text, np.uint8, min(PIECE_BYTES, len(text) - at), at)
        quotes = piece == ord('"')
        escaped = _unquote(piece, quotes, escaped)
        # Parity of the quotes so far: odd inside a string, including its opening quote.
        inside = (np.cumsum(quotes, dtype=np.uint8) & 1).astype(np.bool_) ^ quoted
        quoted = bool(inside[-1])
        step = _STEP[piece]
        step[inside] = 0
        depths = np.cumsum(step, dtype=np.int32) + depth  # after each byte
        depth = int(depths[-1])
        wanted = _SEPARATES[piece] & (depths == 1) & ~inside
        wanted |= (depths == 1) & (step == 1)
        wanted |= (depths == 0) & (step == -1)
        found += (np.flatnonzero(wanted) + at).tolist()
        if len(found) > 2 * MAX_MEMBERS or depth < 0:
            return None
    whole = found and not depth and text[found[0]] == ord("{")
    if not whole or text[found[-1]] != ord("}"):
        return None
    if text[: found[0]].strip(_BLANKS) or text[found[-1] + 1 :].strip(_BLANKS):
        return None
    return found


def _unquote(piece: NDArray[np.uint8], quotes: _Mask, escaped: bool) -> bool:
    """Clear escaped quotes; return whether the first byte of the next piece is escaped.

    Args:
        piece: the text.
        quotes: mask of its quotes; modified in place.
        escaped: a backslash at the end of the previous piece escapes the first byte.
    """
    if escaped:
        quotes[0] = False
    slashes = np.flatnonzero(piece == ord("\\"))
    if escaped and len(slashes) and slashes[0] == 0:
        slashes = slashes[1:]  # this backslash is escaped, so it escapes nothing
    if not len(slashes):
        return False
    first = np.diff(slashes, prepend=-2) != 1  # the first of each run
    runs = np.maximum.accumulate(np.where(first, np.arange(len(slashes)), 0))
    escaping = slashes[(np.arange(len(slashes)) - runs) % 2 == 0]
    goes_on = bool(escaping[-1] == len(piece) - 1)
    quotes[escaping[:-1] + 1 if goes_on else escaping + 1] = False
    return goes_on


def _key(text: bytes) -> str | None:
    text = text.strip(_BLANKS)
    if b"\\" not in text and text[:1] == b'"' == text[-1:]:
        return text[1:-1].decode("utf-8", "replace")
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return key if isinstance(key, str) else None


def _stripped(text: bytes, start: int, end: int) -> Span:
    value = text[start:end].lstrip(_BLANKS)
    return end - len(value), end - len(value) + len(value.rstrip(_BLANKS))
