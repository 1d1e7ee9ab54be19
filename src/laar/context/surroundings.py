"""The evidence that a prompt gives about the documents in one of its texts.

It is the evidence of the text's own turn: later turns find in it what that turn found. Only
requests of later turns are added, since these may speak of documents by their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from laar.context.bodies import Text
from laar.context.formats import Surroundings, words
from laar.context.formats.openers import label_of

_HEAD, _TAIL = 2000, 1000
"""Characters that are read at either end of another text."""

_MOST_SAID = 4
"""Texts that are read so, of system prompts and of others."""

_STANDING = 600
"""Characters of a message that may be a request for all turns to come; longer ones hold
documents."""

_MOST_ASKED = 16_000
"""Characters of a text that are searched for words that give an order a meaning."""

_LONGEST_ASKED = 300
"""Characters of a request at either end of a message with documents."""

_PARAGRAPHS = re.compile(r"\n\s*\n")
_LABEL = re.compile(
    r"[\W_]{0,12}(?:[^\W\d]{1,24}[^\w\n]{0,4})?\d{1,4}(?:[^\w\s,]|\s*$)|\s*<[^<>\n]{1,80}>"
)
"""The beginning of a line that begins a document."""


def surroundings(texts: Sequence[Text], text: Text, answer: str = "") -> Surroundings:
    """The evidence that the rest of a prompt gives about `text`.

    Args:
        texts: all texts of the prompt, in order.
        text: one of them.
        answer: see `Surroundings`.
    """
    if text.path[0] == "prompt":  # the prompts of a batch have nothing to do with each other
        return Surroundings(answer=answer)
    by_tool = text.role == "tool"
    system: list[str] = []
    near: list[str] = []
    asked: list[str] = []
    later: list[str] = []
    asked_apart = False
    for other in texts:
        if other.path == text.path or other.parts:
            continue
        if other.turn > text.turn:
            if other.role != "tool":
                later.append(_request(other.value))
            continue
        asked_apart = asked_apart or other.role == "user"
        if other.role == "tool" or (text.parts and _is_inside(other, text)):
            continue
        is_near = by_tool or other.turn == text.turn
        if other.role == "system":
            system.append(other.value)
        elif is_near:
            near.append(other.value)
        if is_near or other.role == "system" or len(other.value) <= _STANDING:
            asked.append(other.value[:_MOST_ASKED])
    return Surroundings(
        said="\n".join(map(_ends, (*system[:_MOST_SAID], *near[-_MOST_SAID:]))),
        asked=tuple(asked),
        later=tuple(later),
        answer=answer,
        by_tool=by_tool
        and words.TOOL.search(text.tool) is not None
        and words.READS.search(text.tool) is None,
        asked_apart=asked_apart,
        parts=text.parts,
    )


def _is_inside(other: Text, text: Text) -> bool:
    """Whether a text is one of the documents of a content."""
    return other.path[:-2] == text.path and label_of(other.value) is not None


def _ends(value: str) -> str:
    """A text without its middle."""
    if len(value) <= _HEAD + _TAIL:
        return value
    return f"{value[:_HEAD]}\n{value[-_TAIL:]}"


def _request(value: str) -> str:
    """A message of a later turn without its own documents, whose numbers are not those of others.

    In a long message they are in the middle.
    """
    if len(value) <= _STANDING:
        lines = value.split("\n")
        own = _unlabelled(lines)
        return "\n".join(own if len(own) + 1 < len(lines) else lines)
    head, tail = value[:_STANDING], value[-_STANDING:]
    parts = (
        *_PARAGRAPHS.split(head)[:-1][:1],
        *_PARAGRAPHS.split(tail)[1:][-2:],
        tail.rstrip().rpartition("\n")[2],
    )
    asked = "\n".join(part for part in parts if len(part) <= _LONGEST_ASKED)
    return "\n".join(_unlabelled(asked.split("\n")))


def _unlabelled(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if _LABEL.match(line) is None]
