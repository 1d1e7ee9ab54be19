"""Replace document numbers with ids, so that cited documents may move and citations stay correct.

If a prompt numbers documents by position (`<source id="1">`, `[2] ...`), moving a document changes
its number. So each document gets an id that is the same in all prompts, a note maps the original
numbers to ids, and ids in the answer are replaced by the numbers.

    [1] a [2] b  ->  [4821] b [7340] a (note: 1 = [7340], 2 = [4821])  ->  "see [4821]"  ->  [2]

An id has four digits: longer than list numbers, not a year, and not in the request. If the picker
dies and the answer bypasses it, the citations match no document instead of a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from laar.context.blocks import Block

_LEAST, _IDS, _TRIES = 2100, 7900, 8
_DIGITS = 4

_PLAIN = frozenset(
    ("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "seed", "user",
     "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "metadata",
     "frequency_penalty", "presence_penalty", "repetition_penalty", "reasoning_effort", "priority",
     "chat_template_kwargs", "cache_salt", "ignore_eos", "session_id", "chat_id", "stop",
     "prompt_cache_key", "safety_identifier", "keep_alive", "include_reasoning", "stop_token_ids")
)  # fmt: skip
"""Request fields with which the answer is plain text; others may request tokens, tool calls or a
grammar."""

_FIELDS = ("content", "reasoning_content", "reasoning", "text")
"""Fields with the model's text in a choice of an answer."""

_LONGEST = 7
_NUMBER = re.compile(r"(?<!\d)[0-9]{1,6}(?!\d)")  # other scripts' digits could not be restored
_AT_END = re.compile(r"(?<!\d)[0-9]{1,6}\Z")
_CLOSING = re.compile(r"([0-9]{1,6})(?!\d)[^\r\n]*")
_ID = re.compile(r"(?<![\w.$])[0-9]{4}(?!\w|\.\d)")
_OPEN = re.compile(r"(?<![\w.$])([0-9]{4}(?=\.?\Z)|[0-9]{1,3}\Z)")


def can_restore(body: Mapping[str, Any], api: str) -> bool:
    """Return whether the answer to a request will be plain text in known fields."""
    return (
        api in ("chat", "completions")
        and body.get("n") in (None, 1)
        and not isinstance(body.get("prompt"), list)
        and all(name in _PLAIN or name == "n" or not value for name, value in body.items())
    )


def numbered(text: str, block: Block) -> Block:
    """Return the block, marked as movable if ids can replace all its numbers.

    For that, each document must follow its number, which may be repeated after it.
    """
    if not block.fixed or not block.labels_stay or block.quoted:
        return block
    items = block.items
    gaps = [(a.end, b.start) for a, b in pairwise(items)]
    found = [list(_NUMBER.finditer(text, *gap)) for gap in gaps]
    if {len(own) for own in found} not in ({1}, {2}):
        return block
    forms = {
        (
            text[begin : own[0].start()],
            text[own[0].end() : own[-1].start()],
            text[own[-1].end() : end],
        )
        for own, (begin, end) in zip(found, gaps, strict=True)
    }
    if len(forms) > 1:
        return block
    behind, _, before = forms.pop()
    # The first document must have the same text before it, and the last the same after it.
    start = items[0].start - len(before)
    first = _AT_END.search(text[max(0, start - _LONGEST) : start])
    if first is None or text[start : items[0].start] != before:
        return block
    numbers = [(start - len(first[0]), start, 0)]
    numbers += [(*own[-1].span(), at) for at, own in enumerate(found, 1)]
    values = [int(first[0]), *(int(own[-1][0]) for own in found)]
    closing, end = values, block.end
    if len(found[0]) > 1:
        last = _CLOSING.match(text, items[-1].end + len(behind))
        if last is None or not text.startswith(behind, items[-1].end):
            return block
        numbers += [(*own[0].span(), at) for at, own in enumerate(found)]
        numbers.append((*last.span(1), len(items) - 1))
        closing, end = [*(int(own[0][0]) for own in found), int(last[1])], max(end, last.end())
    if closing != values or any(b != a + 1 for a, b in pairwise(values)):
        return block
    named = [item._replace(label=f"{n}") for item, n in zip(items, values, strict=True)]
    return replace(block, items=tuple(named), numbers=tuple(sorted(numbers)), fixed=False, end=end)


def ids_of(scope: int, keys: Sequence[int], taken: set[int]) -> tuple[str, ...]:
    """Return an id for each document, the same in all prompts; empty if one has no unused id.

    Args:
        scope: hash of tenant, route and model.
        keys: hashes of the documents.
        taken: numbers that are no ids, to which the ids are added.
    """
    ids: list[str] = []
    for key in keys:
        for attempt in range(_TRIES):
            own = _LEAST + hash((scope, key, attempt)) % _IDS
            if own not in taken:
                ids.append(str(own))
                taken.add(own)
                break
        else:
            return ()
    return tuple(ids)


def numbers_in(body: bytes) -> set[int]:
    """Return the values of all runs of four digits."""
    signs = np.frombuffer(body, np.uint8) - np.uint8(ord("0"))
    at = np.flatnonzero(signs < 10)
    last = at[_DIGITS - 1 :]
    last = last[last - at[: len(last)] == _DIGITS - 1]
    numbers = sum(signs[last - place].astype(int) * 10**place for place in range(_DIGITS))
    return set(np.atleast_1d(numbers).tolist())


class _Text:
    """One text of an answer, fed in chunks; the start of an id is held back until complete."""

    def __init__(self, numbers: Mapping[str, str]) -> None:
        self._numbers = numbers
        self._before = ""  # the character before the next chunk
        self.held = ""

    def feed(self, chunk: str, *, end: bool) -> str:
        """Return the chunk with ids replaced by numbers, except for what is held back."""
        at = len(self._before)
        text = self._before + self.held + chunk
        begun = None if end else _OPEN.search(text, max(at, len(text) - _DIGITS - 1))
        is_id = begun is not None and any(own.startswith(begun[1]) for own in self._numbers)
        stop = begun.start() if begun is not None and is_id else len(text)
        self.held = text[stop:]
        parts: list[str] = []
        for found in _ID.finditer(text, at):
            if found.end() > stop:
                break
            if found[0] in self._numbers:
                parts += text[at : found.start()], self._numbers[found[0]]
                at = found.end()
        self._before = text[:stop][-1:]
        return "".join(parts) + text[at:stop]


class Citations:
    """Restores numbers in an answer, given its lines or all of it.

    Args:
        numbers: the client's number for each id.
        events: the answer is an event stream; otherwise one JSON document.
    """

    def __init__(self, numbers: Mapping[str, str], *, events: bool) -> None:
        self._events = events
        self._texts = {name: _Text(numbers) for name in _FIELDS}

    def restored(self, data: bytes) -> bytes:
        """Return whole lines, or the answer, with numbers restored."""
        if not self._events:
            return self._document(data, whole=True)
        return b"".join(map(self._line, data.splitlines(keepends=True)))

    def _line(self, line: bytes) -> bytes:
        own = line[5:].strip()
        if not line.startswith(b"data:") or not own.startswith(b"{"):
            return line
        return line.replace(own, self._document(own, whole=False))

    def _document(self, text: bytes, *, whole: bool) -> bytes:
        """Return an event or a whole answer with numbers restored; the same object if unchanged."""
        try:
            choices = (value := orjson.loads(text))["choices"]
            changed = [self._choice(choice, whole=whole) for choice in choices]
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
            return text  # not a completion
        return orjson.dumps(value) if any(changed) else text

    def _choice(self, choice: dict[str, Any], *, whole: bool) -> bool:
        """Restore the texts of a choice; return whether any changed."""
        where = choice.get("message" if whole else "delta", choice)
        present = {name for name in _FIELDS if where.get(name) and isinstance(where[name], str)}
        ends = whole or bool(choice.get("finish_reason"))
        changed = False
        for name, text in self._texts.items():
            if name in present or (text.held and (ends or present)):
                before = where[name] if name in present else ""
                made = text.feed(before, end=ends or name not in present)
                if made != before:
                    where[name] = made
                    changed = True
        return changed
