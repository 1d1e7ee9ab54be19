"""Documents as the elements of a JSON list: ``{"results": [{...}, {...}]}``, as tools return them.

The text must be JSON from end to end. Elements move as they were written; commas and white space
between them stay. Their own text, for de-duplication, is the longest string among the usual fields.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import orjson

from laar.context.blocks import Block, Marks, Refused, Span, block_of
from laar.context.formats.jsonspans import JsonSpans, TooComplexError, Want
from laar.context.settings import Reason

__all__ = ["MARKS", "scan"]

_LISTS = ("results", "documents", "passages")
_TEXTS = ("content", "text", "body", "snippet", "passage", "page_content")
_NAMES = ("rank", "position", "index", "id", "url", "path", "source", "title", "name")

# JSON in a JSON string has its quotes escaped.
MARKS: Marks = ((b"\\", re.compile(rb"\\\"(?:results|documents|passages)\\\"")),)

_Json: TypeAlias = "dict[str, _Json] | list[_Json] | str | int | float | bool | None"


def scan(text: str, *, min_docs: int, max_docs: int) -> list[Block] | None:
    """Finds the list of documents; None when the text is not such a JSON object.

    Raises:
        Refused: the list is too long, or its elements number themselves.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        value: _Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    key = next((name for name in _LISTS if isinstance(value.get(name), list)), None)
    elements = value[key] if key else None
    if not isinstance(elements, list) or len(elements) < min_docs:
        return []
    if len(elements) > max_docs:
        raise Refused(Reason.TOO_MANY)
    if not all(isinstance(element, dict) for element in elements):
        return []
    assert key is not None
    spans = _spans(text, value, key, [e for e in elements if isinstance(e, dict)])
    names = [_names(element) for element in elements if isinstance(element, dict)]
    return [block_of(text, spans, len(text.rstrip()), names=names, quoted=True)]


def _names(element: dict[str, _Json]) -> dict[str, str]:
    named = ((name, element.get(name)) for name in _NAMES)
    return {
        name: str(value)
        for name, value in named
        if isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    }


def _spans(
    text: str, value: dict[str, _Json], key: str, elements: list[dict[str, _Json]]
) -> list[Span]:
    longest: list[str | None] = []
    for element in elements:
        sizes = {name: len(own) for name in _TEXTS if isinstance(own := element.get(name), str)}
        longest.append(max(sizes, key=sizes.__getitem__, default=None))
    want: Want = {key: {i: {name: None} if name else None for i, name in enumerate(longest)}}
    try:
        spans = JsonSpans(text).find(value, want)
    except TooComplexError:
        raise Refused(Reason.TOO_COMPLEX) from None
    if spans is None:
        raise Refused(Reason.DUPLICATE_KEYS)
    found: list[Span] = []
    for i, name in enumerate(longest):
        start, end = spans[key, i]
        # Without a text of its own, an element is too structured to stand for by a note.
        first, last = spans[key, i, name] if name else (end - 1, end + 1)
        found.append((start, end, first + 1, last - 1))
    return found
