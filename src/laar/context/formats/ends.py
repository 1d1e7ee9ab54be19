"""The end of the last document: before the question, the instructions or any other text after it.

Most shapes do not mark it. Several signs are looked for, and where they leave doubt the last
document is not moved, so that no question can get between two documents.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from laar.context.formats import words
from laar.context.formats.view import LONGEST_TAIL, View

RULE = re.compile(r"\n[ \t]*+([-=#*_~+])\1{2,199}[ \t\r]*+(?=\n|$)")
"""A line of one sign; searched for with a line end before it."""

BLANK = re.compile(r"\n[ \t\r]*+\n\s*+")
_TRAILING = re.compile(
    r"(?:\n[ \t]*+(?:([-=#*_~+])\1{1,}|</[\w:.-]{1,40}>|```|\"\"\")[ \t\r]*)++\Z"
)
_MOST_STEPS = 8
_LONGEST_QUESTION = 600


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space around it, and without a rule or a closing tag behind it."""
    while start < end and text[start].isspace():
        start += 1
    while True:
        while end > start and text[end - 1].isspace():
            end -= 1
        line = text.rfind("\n", start, end)
        if line < 0:
            return start, end
        match = _TRAILING.match(text, line, end)
        if match is None:
            return start, end
        end = line


def end_of_part(view: View, start: int, stop: int) -> tuple[int, bool]:
    """The place where the documents that begin before `start` must have ended.

    Args:
        view: the text.
        start: start of a text that is surely a document.
        stop: latest end of the text.

    Returns:
        The place, and whether a sign confirms that it is the end.
    """
    text, lined = view.text, view.lined
    at, sure = stop, False
    cues, others = view.cues(stop)
    asked = [cue for cue, is_question in cues if is_question and cue >= start]
    answered = [cue for cue, is_question in cues if not is_question and cue >= start]
    if asked or answered:
        at, sure = (asked or answered)[-1], True
    others = [other for other in others if start <= other <= at]
    if others:
        at, sure = others[0], True
    near = max(start, stop - LONGEST_TAIL)
    rule = RULE.search(lined, near, at + 1)
    if rule is not None and words.INSTRUCTS.match(text[rule.end() : at].lstrip()[:80]):
        at, sure = rule.start(), True
    for _ in range(_MOST_STEPS):
        _, at = trimmed(text, start, at)
        before = max(text.rfind(gap, near, at) for gap in ("\n\n", "\n \n", "\n\r\n"))
        if before < 0:
            break
        paragraph = text[before:at].strip()
        asks = paragraph.endswith(("?", "？")) and len(paragraph) <= _LONGEST_QUESTION
        if not (words.INSTRUCTS.match(paragraph[:80]) or (asks and not sure)):
            break
        at, sure = before, True
    return at, sure


def end_of_last(
    view: View, start: int, stop: int, others: Sequence[tuple[int, int]]
) -> tuple[int, bool]:
    """The place where the last of several documents ends.

    Args:
        view: the text.
        start: start of the last document's text.
        stop: latest end of it.
        others: spans of the documents before it.

    Returns:
        The place, and whether it is safe to move the document.
    """
    text = view.text
    at, sure = end_of_part(view, start, stop)
    if all(text.find("\n", a, b) < 0 for a, b in others):
        line = text.find("\n", start, at)
        if line >= 0 and not text[start:line].strip():
            line = text.find("\n", line + 1, at)
        return (line, True) if line >= 0 else (at, True)
    parts = [match.start() for match in BLANK.finditer(text, start, at)]
    if not parts:
        return at, True
    blanks = max(len(BLANK.findall(text, a, b)) for a, b in others)
    if not blanks:
        return parts[0], True
    return at, sure or view.around.by_tool
