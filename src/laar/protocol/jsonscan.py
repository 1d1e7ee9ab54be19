"""Locate members of a JSON object without building the values of the others.

Building every value of a long text would delay other requests; skipping them is much faster.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import numpy as np
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

MAX_PARTS = 200_000
"""Maximum number of JSON values in a text to be parsed, as `has_many_parts` estimates it. Parsing
that many takes 30 ms, during which no other request is served, even if a thread parses. Ten million
characters of prose contain fewer."""

FEW_PARTS_BYTES = 512 << 10
"""Texts up to this size never take longer to parse than `MAX_PARTS` values."""

_PIECE_BYTES = 256 << 10

Span: TypeAlias = tuple[int, int]
"""Start and end offsets; the end is exclusive."""

_NONE = Raw()


class _Members(Struct):
    """Members as they are written, the last of any repeated ones; empty if missing."""

    model: Raw = _NONE
    stream: Raw = _NONE
    max_completion_tokens: Raw = _NONE
    max_tokens: Raw = _NONE
    max_output_tokens: Raw = _NONE
    cache_salt: Raw = _NONE
    messages: Raw = _NONE
    prompt: Raw = _NONE
    input: Raw = _NONE
    response: Raw = _NONE
    message: Raw = _NONE


_decode = Decoder(_Members).decode
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def member_spans(text: bytes) -> dict[str, Span] | None:
    """Return the spans of an object's values, by key, for the keys of `_Members`.

    The last of any repeated keys counts. NaN, Infinity and lone surrogates are accepted, as in
    Python's `json`. Return None if the text is not an object, or nested too deeply to be read.
    """
    try:
        try:
            members = _decode(text)
        except DecodeError:  # only the lengths of what is replaced matter
            text = _SURROGATE.sub(rb"\\u0000", text)
            for word in (b"-Infinity", b"Infinity", b"NaN"):
                text = text.replace(word, b"1".ljust(len(word), b"0"))
            members = _decode(text)
    except (DecodeError, RecursionError):
        return None
    spans, begin = {}, _address(text)
    for name in _Members.__struct_fields__:
        if size := memoryview(value := getattr(members, name)).nbytes:
            start = _address(value) - begin
            spans[name] = start, start + size
    return spans


def own_models(text: bytes) -> list[Span] | None:
    """Return the spans of an answer's `model`, which events may have in `response` or `message`."""
    spans = member_spans(text)
    if spans is None:
        return None
    models = [spans["model"]] if "model" in spans else []
    for name in ("response", "message"):
        start, end = spans.get(name, (0, 0))
        if inner := (member_spans(text[start:end]) or {}).get("model"):
            models.append((start + inner[0], start + inner[1]))
    return models


def _address(value: bytes | Raw) -> int:
    return np.frombuffer(value, np.uint8).ctypes.data


def has_many_parts(text: bytes) -> bool:
    """Return whether parsing a text would block other requests for too long.

    Punctuation in strings is counted too, at its usual share in prose.
    """
    parts = 0
    for at in range(0, len(text), _PIECE_BYTES):
        piece = np.frombuffer(text, np.uint8, min(_PIECE_BYTES, len(text) - at), at)
        brace, bracket, quote, comma = (int(np.count_nonzero(piece == mark)) for mark in b'{[",')
        parts += brace + 2 * bracket + (quote + comma) // 4
        if parts > MAX_PARTS:
            return True
    return False
