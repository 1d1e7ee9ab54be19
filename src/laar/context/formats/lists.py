"""Documents as elements of a JSON list, as returned by tools or pasted by programs.

The text, or a part of it that consists of whole lines, must be JSON. If it has several lists, the
one with the most text is used, whatever its key. Elements move as written; the commas and
whitespace between them stay. The longest string of an element is its text, for de-duplication.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from typing import TypeAlias

import orjson

from laar.context.blocks import MAX_DOCS, MIN_DOCS, Block, SkippedText, Span, block_of
from laar.context.formats.jsonspans import Path, spans_of
from laar.context.settings import Reason

_NAMES = ("rank", "position", "index", "id", "url", "path", "source", "title", "name")
"""Fields that identify elements, best first."""

_BEGIN = re.compile(r"\n[ \t]*+(?:\{(?=\s*+\")|\[(?=\s*+[\[{\"]))")

_WRITTEN = re.compile(r"\[(?=\{?['\"])")

_LITERALS = re.compile(  # only what `str` writes; parsing an f-string may take seconds
    r"(?:[\[{(,:] ?-?|[]})]|[\d.]++(?:e[-+]\d+)?|None|True|False"
    r"""|'[^'\\\r]*+(?:\\[\\'nrtxuU][^'\\\r]*+)*+'|"[^"\\\r]*+(?:\\[\\nrtxuU][^"\\\r]*+)*+")*+"""
)

MAX_WRITTEN = 64 << 10
"""Longest repr of a Python list that is parsed; parsing takes about 2 ms."""

_DEEPEST = 3
"""Maximum nesting depth of a list in the JSON, and of the text in an element."""

_MOST_LISTS = 64
_MOST_STARTS = 2
"""Maximum number of lines examined as the start of the JSON: something else may precede it."""

_Json: TypeAlias = "dict[str, _Json] | list[_Json] | str | int | float | bool | None"


def scan(text: str) -> list[Block]:
    """Find a list in a text that is JSON, or in whole lines of it that are.

    Raise `SkippedText` if the list is too long, or its elements can't be separated.
    """
    has_any = '"' in text and ("{" in text or "[" in text)
    for start in islice(_BEGIN.finditer(f"\n{text}"), _MOST_STARTS) if has_any else ():
        begin = start.end() - 2
        end = text.rfind("}" if text[begin] == "{" else "]") + 1
        if not text[end : end + 1].strip():
            with suppress(orjson.JSONDecodeError):
                return [block.shifted(begin) for block in _blocks(text[begin:end])]
    return []


def written_by_python(text: str) -> list[Block]:
    """Find the first list, on one line, in the form that Python's `str` writes.

    Raises:
        Refused: as in `scan`.
    """
    start = _WRITTEN.search(text) if "[" in text else None
    if start is None:
        return []
    line = text[start.start() :].partition("\n")[0]
    end = line.rfind("]") + 1
    # In an object it must stay JSON.
    if line[end:].lstrip().startswith("}") or not _LITERALS.fullmatch(line, 0, end):
        return []
    source = line[:end].encode()
    if len(source) > MAX_WRITTEN:
        raise SkippedText(Reason.TOO_COMPLEX)
    try:
        written = ast.parse(source, mode="eval").body
        values: list[_Json] = ast.literal_eval(written)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []
    if not isinstance(written, ast.List) or len(values) < MIN_DOCS:
        return []
    if len(values) > MAX_DOCS:
        raise SkippedText(Reason.TOO_MANY)
    if len({type(value) for value in values}) > 1 or not all(_text(value)[0] for value in values):
        return []
    ends = [(element.col_offset, element.end_col_offset or 0) for element in written.elts]
    places = [(len(source[:a].decode()), len(source[:b].decode())) for a, b in ends]
    named = [_names(value) if isinstance(value, dict) else {} for value in values]
    block = block_of(
        line,
        [(a, b, a, b) for a, b in places],
        len(source.decode()),
        names=named,
        shape="python",
    )
    return [block.shifted(start.start())]


def _blocks(text: str) -> list[Block]:
    value: _Json = orjson.loads(text)
    best: tuple[int, Path, list[_Json], list[Path]] = (0, (), [], [])
    lists = list(islice(_lists(value, ()), _MOST_LISTS))
    for path, elements in lists:
        texts = list(map(_text, elements[: MAX_DOCS + 1]))
        size = sum(length for length, _ in texts)
        if len(elements) >= MIN_DOCS and all(length for length, _ in texts) and size > best[0]:
            best = size, path, elements, [own for _, own in texts]
    _, path, elements, own = best
    if not own:
        return []
    if len(elements) > MAX_DOCS:
        raise SkippedText(Reason.TOO_MANY)
    objects = [element for element in elements if isinstance(element, dict)]
    block = block_of(
        text,
        _spans(text, path, own),
        len(text.rstrip()),
        names=[*map(_names, objects)] if len(objects) == len(own) else [{}] * len(own),
        quoted=True,
        shape="json" if path else "json_list",
    )
    first = objects[0].keys() if objects else ()
    # A second list of this length (scores, ids) may refer to the elements by position.
    alike = [len(other) for _, other in lists].count(len(elements)) > 1
    stays = alike or any(_count_up(objects, name) for name in first if name not in _NAMES)
    return [replace(block, fixed=True) if stays else block]


def _lists(value: _Json, path: Path) -> Iterator[tuple[Path, list[_Json]]]:
    """Yield all lists, except those inside a list of several elements."""
    if isinstance(value, list):
        yield path, value
        if len(value) == 1 and isinstance(value[0], dict):
            yield from _lists(value[0], (*path, 0))
    elif isinstance(value, dict) and len(path) < _DEEPEST:
        for name, inner in value.items():
            yield from _lists(inner, (*path, name))


def _text(element: _Json, depth: int = _DEEPEST) -> tuple[int, Path]:
    """Return the length of an element's longest text, and its path; 0 if it has none."""
    if isinstance(element, str):
        # A single word, path or link is a name, not text, except in scripts without spaces.
        is_text = depth < _DEEPEST or " " in element or not element.isascii()
        return (len(element) if is_text else 0), ()
    if not depth:
        return 0, ()
    inner: list[tuple[str | int, _Json]] = []
    if isinstance(element, dict):
        inner = [*element.items()]
    elif isinstance(element, list) and len(element) == 1:
        inner = [(0, element[0])]
    best: tuple[int, Path] = (0, ())
    for step, value in inner:
        length, path = _text(value, depth - 1)
        if length > best[0]:
            best = length, (step, *path)
    return best


def _count_up(elements: Sequence[dict[str, _Json]], name: str) -> bool:
    """Return whether the field numbers the parts of one text, such as pages or steps."""
    numbers = (element.get(name) for element in elements)  # usually the first two decide
    return all(isinstance(a, int) and b == a + 1 for a, b in pairwise(numbers))


def _names(element: dict[str, _Json]) -> dict[str, str]:
    named = [(name, element[name]) for name in _NAMES if name in element]
    return {
        name: str(value)
        for name, value in named
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
    }


def _spans(text: str, path: Path, own: Sequence[Path]) -> list[Span]:
    places: list[Path] = [(*path, i) for i in range(len(own))]
    texts = [(*place, *below) for place, below in zip(places, own, strict=True)]
    spans = spans_of(text, texts)
    return [
        (*spans[place], spans[inside][0] + 1, spans[inside][1] - 1)
        for place, inside in zip(places, texts, strict=True)
    ]
