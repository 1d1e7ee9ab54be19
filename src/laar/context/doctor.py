"""Diagnosis of one body as the hook sees it: how many documents, in which shape, and why not more.

It reads a body as the hook does, but looks at every text, from two documents on, and goes on where
the hook stops. Bodies that came before it are learned from, as the hook does. No request waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from laar.context.blocks import Block, Refused
from laar.context.bodies import Text, api_of, prompt_texts
from laar.context.citations import can_restore, numbered
from laar.context.formats import MAX_DOCS, held, scan
from laar.context.formats.jsonspans import raw_of
from laar.context.recurrence import Recurrences
from laar.context.rewrite import is_too_small
from laar.context.settings import ContextSettings, Reason

_LEAST = 2

WHY = {
    "no_documents": "No text of the prompt has documents in tags or JSON, or documents that came "
    "before between others. Give it several bodies of the route, one a line, to learn from.",
    "positional_labels": "The labels number places, and an answer may name them. Ids take their "
    "place where numbers are plain to see and the answer is text alone (chat or completions, "
    "without tools or a grammar). `relabel: true` says that nobody uses the numbers.",
    "too_few_documents": "A list this short has little to gain.",
    "too_small": "The text is too short for a saving.",
    "repeated_documents": "Two documents are equal.",
    "not_the_last_turn": "The documents came with an older turn, which must stay as it was sent.",
    "role": "The documents are in a message whose role the route leaves alone (`roles`).",
    "invalid_json": "The body is no JSON in UTF-8.",
    "unsupported_api": "The body has neither `messages`, `prompt` nor `input`.",
    "unbalanced": "A tag of a document is not closed, or closed twice.",
    "nested": "A document stands inside of another.",
    "malformed_tag": "A tag of a document can't be read.",
    "duplicate_attribute": "A tag has an attribute twice.",
    "gaps_differ": "Something stands between two documents.",
    "too_many_documents": f"There are more than {MAX_DOCS}.",
    "too_complex": "The text takes too many steps to read.",
    "duplicate_keys": "A key of the JSON comes twice.",
}
"""Reasons in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One list of documents.

    Args:
        path: path of its text in the body.
        role: role of its text.
        shape: name of its shape.
        documents: how many.
        bytes: their length.
        movable: how many of them the hook may move.
        reason: why not all of them.
    """

    path: str
    role: str
    shape: str
    documents: int
    bytes: int
    movable: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings in a body.

    Args:
        documents: number of documents in all lists.
        shape: shape of the longest list; None where there is none.
        movable: documents that the hook may move.
        reason: why not all of them, or why there are none; None where all is well.
        why: the same in a sentence.
        api: the API by which the body was read.
        lists: all lists of documents.
    """

    documents: int
    shape: str | None
    movable: int
    reason: str | None
    why: str | None
    api: str | None
    lists: tuple[Seen, ...] = ()


def diagnose(
    body: bytes,
    settings: ContextSettings | None = None,
    *,
    api: str | None = None,
    earlier: Sequence[bytes] = (),
) -> Diagnosis:
    """Reads a body; never raises.

    Args:
        body: JSON; a line of a batch file counts by its ``body``.
        settings: settings of the route; None for the defaults.
        api: ``chat``, ``messages``, ``responses`` or ``completions``; None to detect it by its
            fields.
        earlier: bodies that came before, to learn documents from.
    """
    settings = settings or ContextSettings()
    learned = Recurrences()
    for one in earlier:
        read = _read(one, api)
        for text in read.texts if isinstance(read, _Prompt) else ():
            seen = learned.find(0, text.value)[1]
            if seen is not None:
                learned.learn(seen)
    prompt = _read(body, api)
    if isinstance(prompt, Reason):
        return _nothing(prompt.value, api)
    api = prompt.api
    lists: list[Seen] = []
    refused: str | None = None
    for text in prompt.texts:
        blocks: list[Block] = []
        try:
            few = replace(settings, min_docs=_LEAST)
            blocks = scan(text.value, few, is_parts=text.parts, by_tool=text.role == "tool")
        except Refused as stop:
            refused = stop.reason.value
        if not blocks and not text.parts and "recurring" in settings.formats:
            block = learned.find(0, text.value)[0]
            blocks = [] if block is None else [held(block, settings)]
        if prompt.restores:
            blocks = [numbered(text.value, block) for block in blocks]
        lists += [_seen(text, block, settings) for block in blocks]
    if not lists:
        return _nothing(refused or Reason.NO_DOCUMENTS.value, api)
    longest = max(lists, key=lambda seen: seen.documents)
    return Diagnosis(
        documents=sum(seen.documents for seen in lists),
        shape=longest.shape,
        movable=sum(seen.movable for seen in lists),
        reason=longest.reason,
        why=WHY.get(longest.reason) if longest.reason else None,
        api=api,
        lists=tuple(lists),
    )


class _Prompt(NamedTuple):
    api: str
    texts: list[Text]
    restores: bool = False


def _read(body: bytes, api: str | None) -> _Prompt | Reason:
    """The texts of a body, or why there are none."""
    try:
        value = orjson.loads(body)
        if isinstance(value, dict) and isinstance(value.get("body"), dict):
            value = value["body"]
            body = orjson.dumps(value)
    except orjson.JSONDecodeError:
        return Reason.INVALID_JSON
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        return Reason.TOO_COMPLEX
    api = api or (api_of(value) if isinstance(value, dict) else None)
    if api is None or not isinstance(value, dict):
        return Reason.UNSUPPORTED_API
    try:
        texts = prompt_texts(value, api, raw_of(body))
        return _Prompt(api, texts, can_restore(value, api))
    except Refused:  # without contents as a whole
        return _Prompt(api, prompt_texts(value, api))


def _nothing(reason: str, api: str | None = None) -> Diagnosis:
    return Diagnosis(
        documents=0, shape=None, movable=0, reason=reason, why=WHY.get(reason), api=api
    )


def _seen(text: Text, block: Block, settings: ContextSettings) -> Seen:
    own = [text.value[item.start : item.end] for item in block.items]
    size = sum(len(one.encode()) for one in own)
    reason = _reason(text, block, settings, own, size)
    return Seen(
        path=".".join(map(str, text.path)),
        role=text.role,
        shape=block.shape,
        documents=block.documents,
        bytes=size,
        movable=0 if reason else len(block.items),
        reason=reason,
    )


def _reason(
    text: Text, block: Block, settings: ContextSettings, own: list[str], size: int
) -> str | None:
    """Why a list is not moved, or not as a whole."""
    if text.role not in settings.roles:
        return "role"
    if block.held is not None:
        return block.held.value
    if not text.fresh:
        return "not_the_last_turn"
    if len(own) < settings.min_docs:
        return "too_few_documents"
    if len(set(own)) < len(own):
        return Reason.REPEATED.value
    if is_too_small(block, size, settings):
        return Reason.TOO_SMALL.value
    return None
