"""Places in a text where documents were announced, and the evidence for them.

Paragraphs, points and bullets are documents only in such a place. Four things make one: a tag
(``<context>``), lines of one sign (``-----``) under a sentence about retrieved texts, a heading
(``Context:``) or such a sentence alone, and the result of a tool that looks things up. Points of
evidence are counted for each, so that one word by chance is never enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from laar.context.formats import cues, words
from laar.context.formats.ends import RULE, end_of_part, trimmed
from laar.context.formats.view import View

__all__ = ["Place", "places"]

_HEAD = 4000
_TAIL = 2000
_NEAR = 700
_MOST_LINES = 24
_FAR_CHARS = 200_000
_LONGEST_LINE = 700
_MOST_PLACES = 8

_TAGS = (
    r"contexts?|documents?|docs|passages?|sources?|knowledge(?:[_-]base)?|information|evidence|"
    r"memor(?:y|ies)|retriev(?:ed|al)(?:[_-]\w{1,20})?|search[_-]results?|results|references?|"
    r"snippets|chunks|excerpts|rag(?:[_-]\w{1,20})?|facts|articles|user[_-]memor(?:y|ies)|"
    r"context[_-](?:data|documents|info(?:rmation)?)|kb|background"
)
_TAG = re.compile(rf"<({_TAGS})(?:\s[^<>]{{0,200}})?>", re.IGNORECASE)
_QUOTES = re.compile(r"(```|\"\"\"|''')[a-zA-Z]{0,12}\n")
_SENTENCE_END = (":", "：", ".", "。", "!", "below")
_LISTED = re.compile(r"[ \t]*(?:[-*•+]|\(?\d{1,3}[.)])[ \t]")
_MOST_ADVICE = 4
_LONG_RULE = 6
_INTRODUCES = re.compile(r"[^\n]{1,120}[:：][ \t\r]*+\n")

_Span = tuple[int, int, bool, int, str]
"""Start, end, whether it is closed, points for its announcement, and the announcement's kind."""

# Beginnings of lines, looked for in all of a long text, since that is cheap.
_FAR = re.compile(
    r"\n(?=[CDRSKMPUBHW#])(?:#{1,4} )?(?:Context|CONTEXT|Documents|Retrieved|Relevant|"
    r"Search [Rr]esults|Sources|Knowledge|Memories|User Memories|Passages|Use the following|"
    r"Below (?:is|are)|Here (?:is|are))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place where documents should be.

    Args:
        start, end: span of the announced text, without white space.
        points: points of evidence; see `shapes.Needs`.
        looked_up: words, not only a heading, show that the documents were retrieved.
        closed: a mark shows the end, so that the last document ends there.
        memories: they are memories of a user.
        kind: kind of the announcement, for reports.
    """

    start: int
    end: int
    points: int
    looked_up: bool
    closed: bool
    memories: bool
    kind: str


def places(view: View) -> Iterator[Place]:
    """All places in the text, the best first."""
    text, around = view.text, view.around
    if around.by_tool:
        start, end = trimmed(text, 0, len(text))
        head = _INTRODUCES.match(text, start)
        if head is not None and words.RETRIEVAL_NOUN.search(head.group()):
            start = _skip(text, head.end())
        yield Place(
            start=start,
            end=end,
            points=3,
            looked_up=True,
            closed=True,
            memories=False,
            kind="tool",
        )
    lines = _lines(view)
    found: dict[int, Place] = {}
    for start, end, closed, points, kind in (
        *_tagged(text),
        *_announced(view, lines),
    ):
        if start < end and start not in found and len(found) < _MOST_PLACES:
            found[start] = _judged(view, start, end, closed, points, kind)
    # Closed places first: they are the narrower ones.
    yield from sorted(found.values(), key=lambda place: (not place.closed, place.start))
    whole = _whole(view)
    if whole is not None:
        yield whole


def _lines(view: View) -> list[tuple[int, int]]:
    """Starts and ends of lines that may announce something: near either end, or that look so."""
    text = view.text
    windows = [(0, min(len(text), _HEAD))]
    if len(text) > _HEAD:
        windows.append((max(_HEAD, len(text) - _TAIL), len(text)))
    lines: dict[int, int] = {}
    for first, last in windows:
        window = text[first:last].lower()
        for stem in words.STEMS.maybe_in(window):
            at = window.find(stem)
            while at >= 0 and len(lines) < _MOST_LINES:
                start = text.rfind("\n", 0, first + at) + 1
                end = lines[start] = _line_end(text, first + at)
                at = window.find(stem, end - first)
    if _HEAD + _TAIL < len(text) < _FAR_CHARS:
        for found in islice(_FAR.finditer(view.lined, _HEAD), _MOST_PLACES):
            lines.setdefault(found.start(), _line_end(text, found.start()))
    return sorted(lines.items())


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _tagged(text: str) -> Iterator[_Span]:
    if "<" not in text:
        return
    for match in islice(_TAG.finditer(text), _MOST_PLACES):
        end = text.find(f"</{match[1]}>", match.end())
        if end < 0:
            continue
        inner = text[match.end() : match.end() + 400]
        if not inner[: end - match.end()].strip():
            continue  # only talks about the tag
        start, end = trimmed(text, match.end(), end)
        yield start, end, True, 2, "tag"


def _announced(view: View, lines: list[tuple[int, int]]) -> Iterator[_Span]:
    """The text after a heading or a sentence about documents: fenced, or up to the end."""
    text = view.text
    for start, end in lines:
        line = text[start : min(end, start + _LONGEST_LINE)]
        found = _heading(line, whole=len(line) == end - start)
        if found is None:
            continue
        length, points = found
        begin = _skip(text, _after_advice(text, start + length))
        if _heading(text[begin : begin + 200].split("\n", 1)[0], whole=True, only=True) is not None:
            continue  # the next line announces them more closely
        if _announces_rules(view, begin):
            continue
        if _TAG.match(text, begin):
            continue  # so does a tag
        fenced = _fenced(view, begin)
        if fenced is not None:
            yield (*fenced, max(1, points), "rules")
            continue
        stop, sure = end_of_part(view, begin, _section_end(text, line, begin))
        a, b = trimmed(text, begin, max(begin, stop))
        yield a, b, sure or view.around.asked_apart, points, "heading"


def _announces_rules(view: View, begin: int) -> bool:
    """Whether the line is a sentence of its own about the text between two rules behind it."""
    end = _line_end(view.text, begin)
    line = view.text[begin : min(end, begin + _LONGEST_LINE)]
    rule = RULE.match(view.lined, _skip(view.text, end))
    return rule is not None and _heading(line, whole=True) is not None


def _section_end(text: str, line: str, begin: int) -> int:
    """The place of the next heading of the level, if the line is a heading."""
    level = len(line) - len(line.lstrip("#"))
    if not level or text[begin : begin + 1] == "#":  # the documents have headings themselves
        return len(text)
    following = re.compile(rf"\n#{{1,{level}}}[ \t]").search(text, max(0, begin - 1))
    return len(text) if following is None else following.start()


def _heading(line: str, *, whole: bool, only: bool = False) -> tuple[int, int] | None:
    """How much of a line announces documents, and points for it; None if nothing does.

    Args:
        line: the line.
        whole: nothing of it was cut off.
        only: it must be a heading, not a sentence.
    """
    header = words.HEADER.match(f"{line}\n" if whole else line)
    if header is not None:
        own = header.group().rstrip("*_ \t")
        if line[header.end() :].strip() and words.ONE.fullmatch(header["noun"]):
            return None  # "Source: a.pdf" names one document
        if own.endswith((":", "：")) or own.lstrip()[:1] in {"#", "["}:
            return min(header.end(), len(line)), 2
        return None
    if only:
        return None
    memory = words.MEMORIES.end_in(line)
    if memory >= 0 and (colon := line.find(":", memory - 1)) >= 0:
        return colon + 1, 0
    if _LISTED.match(line):
        return None
    own = line.rstrip("-=*_ \t\r")
    ended = own.endswith(_SENTENCE_END) or len(own) < len(line.rstrip())
    pointed = own.endswith((":", "：")) or words.POINTS_AT.are_in(line)
    if ended and pointed and words.RETRIEVAL.are_in(line):
        return len(line), 0
    return None


def _after_advice(text: str, at: int) -> int:
    """Behind sentences that go on about how to answer."""
    for _ in range(_MOST_ADVICE):
        begin = _skip(text, at)
        end = _line_end(text, begin)
        line = text[begin : min(end, begin + _LONGEST_LINE)]
        advises = words.INSTRUCTS.match(line) and words.ANSWERS.are_in(line)
        if not line or RULE.match(f"\n{line}") or not (advises or words.UNSURE.are_in(line[:200])):
            break
        if len(line) >= _LONGEST_LINE:
            break
        at = end
    return at


def _fenced(view: View, begin: int) -> tuple[int, int, bool] | None:
    """The inside of a pair of rules or quotes that begins there."""
    text, lined = view.text, view.lined
    rule = RULE.match(lined, begin)
    quote = _QUOTES.match(text, begin)
    if rule is not None:
        inside, sign = rule.end() - 1, rule.group().strip()
    elif quote is not None:
        inside, sign = quote.end() - 1, quote[1]
    else:
        return None
    close = text.find(f"\n{sign}", inside)
    closed = close >= 0 and (_closes(view, close) or _is_pair(text, close, sign))
    stop = close if closed else end_of_part(view, inside, len(text))[0]
    a, b = trimmed(text, inside, max(inside, stop))
    return a, b, closed or view.around.asked_apart


def _closes(view: View, at: int) -> bool:
    """Whether the rule there ends the documents rather than parting two of them."""
    rest = view.text[at:].lstrip("-=#*_~+`\"' \t\n")
    return not rest or bool(words.INSTRUCTS.match(rest[:80]) or cues.announces_question(rest[:200]))


def _is_pair(text: str, close: int, sign: str) -> bool:
    """Whether a long rule comes back just once: a pair around all rather than one between two."""
    return len(sign) >= _LONG_RULE and text.find(f"\n{sign}", close + len(sign)) < 0


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _judged(view: View, start: int, end: int, closed: bool, points: int, kind: str) -> Place:
    """Counts the evidence around a place."""
    text, around = view.text, view.around
    before, after = text[max(0, start - _NEAR) : start], text[end : end + _NEAR]
    near = words.RETRIEVAL.are_in(before) or words.RETRIEVAL.are_in(after)
    said = not near and words.RETRIEVAL.are_in(around.said)
    points += 2 if near else 1 if said else 0
    asked = (
        around.asked_apart
        or any(mark in part for mark in "?？" for part in (before, after))
        or cues.has_question(after.lstrip())
        or words.INSTRUCTS.match(after.lstrip("-=#*_~+`\"' \t\r\n")) is not None
        or (closed and words.ANSWERS.are_in(after))
        or (kind == "tag" and bool(_behind_tag(after)))
        or cues.has_question(before)
    )
    points += asked
    points += any(words.UNSURE.are_in(part) for part in (before, after, around.said))
    memories = words.MEMORIES.are_in(before[-200:])
    points += 2 * memories
    return Place(
        start=start,
        end=end,
        points=points if asked else min(points, 2),
        looked_up=near,
        closed=closed,
        memories=memories,
        kind=kind,
    )


def _behind_tag(after: str) -> str:
    """The text behind the end of a tag, stripped."""
    return after.partition(">")[2].strip()


def _whole(view: View) -> Place | None:
    """A text that is documents from its beginning on, as another text or its own end announces."""
    text, around = view.text, view.around
    if not (around.said or words.STEMS.are_in(text[-_NEAR:].lower())) and not any(
        is_question for _, is_question in view.cues(len(text))[0]
    ):
        return None
    start = _skip(text, 0)
    stop, sure = end_of_part(view, start, len(text))
    after = text[stop : stop + _NEAR]
    a, b = trimmed(text, start, stop)
    labelled = cues.announces_question(after.lstrip())
    if not sure or a >= b:
        return None
    if words.RETRIEVAL.are_in(after) or words.RETRIEVAL.are_in(around.said):
        return _judged(view, a, b, sure, 0, "text")
    if not labelled:
        return None
    # A question with its label: enough for texts under numbers in brackets.
    return replace(_judged(view, a, b, sure, 0, "text"), points=2)
