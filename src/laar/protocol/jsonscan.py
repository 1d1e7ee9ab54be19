"""Parse long JSON without delaying other requests.

While a parser runs, no other thread does, and with it the event loop. So long texts are parsed in
pieces, or members of an object are located without building the values of the others.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
import orjson
import xxhash
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

MAX_PARTS = 100_000
"""Maximum number of JSON values in a text to be parsed, as `has_many_parts` estimates it. Ten
million characters of prose contain fewer."""

MAX_AT_ONCE_BYTES = 4 << 20
"""Maximum size of a text that is parsed at once, and of a string: no engine takes a longer text."""

SHORT_BYTES = 64 << 10
"""Size up to which a text is parsed at once, whatever it contains."""

_MAX_CONTAINERS = 10_000
_MAX_LEVELS = 8  # media are six levels deep

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
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


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


class CutText(str):
    """Stands for a long string: its digest; `chars` is its length, `begin` its beginning."""

    chars, begin = 0, ""


_object, _list = Decoder(dict[str, Raw]).decode, Decoder(list[Raw]).decode


def is_quick(text: bytes) -> bool:
    """Return whether a text is parsed within a few milliseconds: objects and lists take longest."""
    if len(text) <= SHORT_BYTES:
        return True
    if len(text) > MAX_AT_ONCE_BYTES:
        return False
    either = np.frombuffer(text, np.uint8) | 0x20 == 0x7B  # `{`, or `[`, which lacks this bit
    return int(np.count_nonzero(either)) <= _MAX_CONTAINERS


def parse_in_pieces(text: bytes | memoryview, levels: int = _MAX_LEVELS) -> Any:
    """Parse plain JSON; each string over `MAX_AT_ONCE_BYTES` becomes a `CutText`.

    Raise `ValueError` if it is not plain JSON, or nested too deeply.
    """
    if len(text) <= MAX_AT_ONCE_BYTES and is_quick(whole := bytes(text)):
        return orjson.loads(whole)
    first = bytes(text[:64]).lstrip()[:1]
    if first == b"{" and levels:
        members = _object(text).items()
        return {name: parse_in_pieces(memoryview(each), levels - 1) for name, each in members}
    if first == b"[" and levels:
        return [parse_in_pieces(memoryview(each), levels - 1) for each in _list(text)]
    if first != b'"':
        raise ValueError
    if len(text) <= MAX_AT_ONCE_BYTES:
        return orjson.loads(text)
    found = CutText(xxhash.xxh3_128_hexdigest(text))
    found.chars, found.begin = len(text), str(text[1:1024], "utf-8", "replace")
    return found


def without_lone_surrogates(text: bytes) -> bytes:
    """Return JSON with `?` instead of lone surrogates, which only some parsers accept."""
    return _LONE.sub(b"?", text)


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
