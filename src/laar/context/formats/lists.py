"""Documents as the elements of a JSON list, as tools return them and programs paste them.

The text, or the place, must be JSON from end to end. Elements move as they were written; commas and
white space between them stay. Their own text, for de-duplication, is the longest string among the
usual fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import orjson

from laar.context.blocks import Block, Limits, Refused, Span, block_of
from laar.context.formats.jsonspans import Path, spans_of
from laar.context.settings import Reason

LISTS = (
    "results", "documents", "passages", "memories", "docs", "contexts", "context", "chunks",
    "sources", "snippets", "search_results", "retrieved_documents", "retrieved", "excerpts",
    "source_documents", "source_nodes", "references", "facts", "retrievalResults", "organic",
    "organic_results", "search_hits",
)  # fmt: skip
"""Names under which a list is one of documents."""

LOOSE_LISTS = (
    "hits", "matches", "nodes", "items", "data", "records", "articles", "knowledge", "points",
    "value", "result", "children", "pages", "entries", "paragraphs",
)  # fmt: skip
"""Names that lists of other things have as well."""

AROUND = ("data", "hits", "web", "result", "results", "response", "output", "root", "webPages")
"""Names of objects that hold such a list, in the answers of search engines and their wrappers."""

INSIDE = (
    "_source", "payload", "node", "document", "metadata", "entity", "properties", "fields",
    "content", "chunk", "data",
)  # fmt: skip
"""Names of the object that holds an element's text, where it is not beside the score."""

TEXTS = (
    "content", "text", "body", "snippet", "passage", "page_content", "pageContent", "memory",
    "chunk", "chunk_text", "document", "excerpt", "fact", "summary", "description", "abstract",
    "Value",
)  # fmt: skip
"""Fields that hold a document's text."""

_TEXT_FIELDS = {name: i for i, name in enumerate(TEXTS)}

RETRIEVED = frozenset(
    ("page_content", "pageContent", "metadata", "score", "similarity", "distance", "relevance",
     "relevance_score", "doc_id", "document_id", "chunk_id", "source", "memory", "snippet",
     "passage", "url", "link", "_score", "_source", "@search.score", "file_id", "uri")
)  # fmt: skip
"""Fields that only retrieved elements have."""

TURNS = frozenset(
    ("role", "speaker", "sender", "from", "step", "turn", "level", "severity", "tool_calls",
     "timestamp", "function", "parameters", "arguments", "status", "state", "priority", "start",
     "end", "completed", "assignee", "sha", "commit", "ts", "thread_ts", "exit_code", "prompt",
     "completion", "user")
)  # fmt: skip
"""Fields of elements in sequence, or without text: messages, steps, lines of a log, tools."""

_NAMES = ("rank", "position", "index", "id", "url", "path", "source", "title", "name")

_BEGIN = re.compile(r"\n[ \t]*+(?:\{(?=\s*+\")|\[(?=\s*+[\{\"]))")

_LEAST_CHARS = 12
_MOST_AROUND = 3

_Json: TypeAlias = "dict[str, _Json] | list[_Json] | str | int | float | bool | None"


def scan(text: str, limits: Limits) -> list[Block]:
    """Finds the list in a text that is JSON.

    Args:
        text: the whole text.
        limits: of its elements.

    Raises:
        Refused: the list is too long, or its elements can't be separated.
    """
    if text.lstrip()[:1] not in {"{", "["}:
        return []
    try:
        value: _Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(value, dict | list):
        return []
    return _blocks(text, value, limits, announced=True)


def within(text: str, limits: Limits) -> list[Block]:
    """Finds a list among other text; it must begin and end a line.

    Raises:
        Refused: as in `scan`.
    """
    start = _BEGIN.search(text) if '"' in text and ("{" in text or "[" in text) else None
    if start is None:
        return []
    begin = start.end() - 1
    end = text.rfind("}" if text[begin] == "{" else "]") + 1
    part = text[begin:end]
    try:
        value: _Json = orjson.loads(part)
    except orjson.JSONDecodeError:
        return []
    if text[end : end + 1].strip() or not isinstance(value, dict | list):
        return []
    return [block.shifted(begin) for block in _blocks(part, value, limits, announced=False)]


def _blocks(
    text: str, value: dict[str, _Json] | list[_Json], limits: Limits, *, announced: bool
) -> list[Block]:
    path: tuple[str, ...] = ()
    elements: _Json = value
    known = paired = False
    if isinstance(value, dict):
        path = _path(value)
        if not path:
            return []
        holder = _at(value, path[:-1])
        elements, known = _at(value, path), path[-1] in LISTS
        paired = (
            isinstance(holder, dict) and isinstance(elements, list) and _paired(holder, elements)
        )
    if not isinstance(elements, list) or len(elements) < limits.least:
        return []
    own: list[Path]
    if all(isinstance(element, str) for element in elements):
        if not (announced or known) or not _prose([e for e in elements if isinstance(e, str)]):
            return []
        own = [()] * len(elements)
    else:
        own = _own_texts(elements, known=known, announced=announced)
        if not own:
            return []
    if len(elements) > limits.most:
        raise Refused(Reason.TOO_MANY)
    spans = _spans(text, value, path, own)
    shape = "json" if path else "json_list"
    named = [_names(element) if isinstance(element, dict) else {} for element in elements]
    block = block_of(
        text,
        spans,
        len(text.rstrip()),
        names=named,
        relabel=limits.relabel,
        quoted=True,
        shape=shape,
    )
    stays = paired or any(map(partial(_count_up, elements), _STAGES))
    return [replace(block, held=Reason.POSITIONAL_LABELS) if stays else block]


_STAGES = (
    "page", "page_number", "chapter", "part", "section", "chunk_index", "chunk", "seq", "sequence",
    "line", "slide", "order",
)  # fmt: skip
"""Fields that number the parts of one text."""


def _count_up(elements: Sequence[_Json], name: str) -> bool:
    first = elements[0]
    if not isinstance(first, dict) or name not in first:
        return False  # most elements
    numbers = [element.get(name) for element in elements if isinstance(element, dict)]
    return len(numbers) == len(elements) and all(
        isinstance(a, int) and b == a + 1 for a, b in pairwise(numbers)
    )


def _path(value: dict[str, _Json]) -> tuple[str, ...]:
    """The path of the list in an object; empty if there is none."""
    path: tuple[str, ...] = ()
    for _ in range(_MOST_AROUND):
        for name in (*LISTS, *LOOSE_LISTS):
            if isinstance(value.get(name), list):
                return (*path, name)
        name = next((name for name in AROUND if isinstance(value.get(name), dict)), "")
        inner = value.get(name)
        if not isinstance(inner, dict):
            break
        path, value = (*path, name), inner
    return ()


def _at(value: _Json, path: Sequence[str]) -> _Json:
    for name in path:
        assert isinstance(value, dict)
        value = value[name]
    return value


def _paired(holder: dict[str, _Json], elements: list[_Json]) -> bool:
    """Whether another list beside it refers to the same elements by their places."""
    return any(
        isinstance(other, list) and other is not elements and len(other) == len(elements)
        for other in holder.values()
    )


def _is_name(text: str) -> bool:
    """One word, path or link; scripts that write without blanks aside."""
    return " " not in text and text.isascii()


def _prose(texts: Sequence[str]) -> bool:
    """Whether strings are texts rather than names."""
    return all(len(text) >= _LEAST_CHARS and not _is_name(text) for text in texts)


def _own_texts(elements: Sequence[_Json], *, known: bool, announced: bool) -> list[Path]:
    """Paths of the elements' texts; empty if one has none, or is a turn of a talk or a step."""
    own: list[Path] = []
    for element in elements:
        if not isinstance(element, dict) or not TURNS.isdisjoint(element):
            return []
        path = _text_field(element)
        if not path:
            return []
        if not (known or announced) and RETRIEVED.isdisjoint(element):
            return []
        own.append(path)
    return own


def _text_field(element: dict[str, _Json]) -> Path:
    """The path of the longest text among the usual fields; empty if there is none."""
    sizes = {
        name: len(own)
        for name, own in element.items()
        if name in _TEXT_FIELDS and isinstance(own, str) and own
    }
    if sizes:
        return (min(sizes, key=lambda name: (-sizes[name], _TEXT_FIELDS[name])),)
    for name in INSIDE:
        inner = element.get(name)
        at: Path = (name,)
        if isinstance(inner, list) and len(inner) == 1:
            inner, at = inner[0], (name, 0)
        if isinstance(inner, dict):
            found = next((field for field in TEXTS if isinstance(inner.get(field), str)), None)
            if found is not None:
                return (*at, found)
    return ()


def _names(element: dict[str, _Json]) -> dict[str, str]:
    named = [(name, element[name]) for name in _NAMES if name in element]
    return {
        name: str(value)
        for name, value in named
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
    }


def _spans(
    text: str,
    value: dict[str, _Json] | list[_Json],
    path: tuple[str, ...],
    own: Sequence[Path],
) -> list[Span]:
    places: list[Path] = [(*path, i) for i in range(len(own))]
    texts = [(*place, *below) for place, below in zip(places, own, strict=True)]
    spans = spans_of(text, value, texts)
    return [
        (*spans[place], spans[inside][0] + 1, spans[inside][1] - 1)
        for place, inside in zip(places, texts, strict=True)
    ]
