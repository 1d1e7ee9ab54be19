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
from typing import NamedTuple

from laar.context.formats import cues, words
from laar.context.formats.ends import RULE, end_of_part, trimmed
from laar.context.formats.seek import matches
from laar.context.formats.view import View

_HEAD, _TAIL = 4000, 2000
"""Characters at either end of a text in which any line may announce documents."""

_FAR_CHARS = 200_000
"""Characters of a text between whose ends the lines of `_FAR` are looked for."""

_NEAR = 700
"""Characters before and behind a place that are read for evidence."""

_LONGEST_LINE = 700
_MOST_LINES = 24
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
_LONG_RULE = 6
_MOST_ADVICE = 4
"""Lines of advice between an announcement and its documents."""

_INTRODUCES = re.compile(r"[^\n]{1,120}[:：][ \t\r]*+\n")

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


class _Span(NamedTuple):
    """Announced text, without white space: `points` are those of its announcement alone."""

    start: int
    end: int
    closed: bool
    points: int
    kind: str


def places(view: View) -> Iterator[Place]:
    """All places in the text, the best first."""
    if view.around.by_tool:
        yield _result(view.text)
    found: dict[int, Place] = {}
    for span in (*_tagged(view.text), *_announced(view)):
        if span.start < span.end and span.start not in found and len(found) < _MOST_PLACES:
            found[span.start] = _judged(view, span)
    # Closed places first: they are the narrower ones.
    yield from sorted(found.values(), key=lambda place: (not place.closed, place.start))
    whole = _whole(view)
    if whole is not None:
        yield whole


def _result(text: str) -> Place:
    """The result of a tool, without a first line such as "Found 5 results:"."""
    start, end = trimmed(text, 0, len(text))
    head = _INTRODUCES.match(text, start)
    if head is not None and words.RETRIEVAL_NOUN.search(head.group()):
        start = _skip(text, head.end())
    return Place(
        start=start, end=end, points=3, looked_up=True, closed=True, memories=False, kind="tool"
    )


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
        for found in islice(view.ends.matches(_FAR, _HEAD), _MOST_PLACES):
            lines.setdefault(found.start(), _line_end(text, found.start()))
    return sorted(lines.items())


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _tagged(text: str) -> Iterator[_Span]:
    for match in islice(matches(_TAG, text, "<"), _MOST_PLACES):
        end = text.find(f"</{match[1]}>", match.end())
        if end < 0:
            continue
        inner = text[match.end() : match.end() + 400]
        if not inner[: end - match.end()].strip():
            continue  # only talks about the tag
        start, end = trimmed(text, match.end(), end)
        yield _Span(start, end, closed=True, points=2, kind="tag")


def _announced(view: View) -> Iterator[_Span]:
    """The text after a heading or a sentence about documents: fenced, or up to the end."""
    text = view.text
    for start, end in _lines(view):
        line = text[start : min(end, start + _LONGEST_LINE)]
        found = _heading(line, whole=len(line) == end - start)
        if found is None:
            continue
        length, points = found
        begin = _skip(text, _after_advice(text, start + length))
        if _is_announced_again(view, begin):
            continue
        fenced = _fenced(view, begin)
        if fenced is not None:
            yield _Span(*fenced, max(1, points), "rules")
            continue
        stop, sure = end_of_part(view, begin, _section_end(text, line, begin))
        a, b = trimmed(text, begin, max(begin, stop))
        yield _Span(a, b, sure or view.around.asked_apart, points, "heading")


def _is_announced_again(view: View, begin: int) -> bool:
    """Whether the text there has a closer announcement: a heading, a sentence over rules, a tag."""
    text = view.text
    following = text[begin : begin + 200].split("\n", 1)[0]
    return (
        _heading(following, whole=True, only=True) is not None
        or _announces_rules(view, begin)
        or _TAG.match(text, begin) is not None
    )


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


def _judged(view: View, span: _Span) -> Place:
    """Counts the evidence around a place."""
    text, said = view.text, view.around.said
    before, after = text[max(0, span.start - _NEAR) : span.start], text[span.end : span.end + _NEAR]
    near = words.RETRIEVAL.are_in(before) or words.RETRIEVAL.are_in(after)
    memories = words.MEMORIES.are_in(before[-200:])
    asked = _is_asked(view, span, before, after)
    points = span.points + 2 * memories + asked
    points += 2 if near else words.RETRIEVAL.are_in(said)
    points += any(map(words.UNSURE.are_in, (before, after, said)))
    return Place(
        start=span.start,
        end=span.end,
        points=points if asked else min(points, 2),
        looked_up=near,
        closed=span.closed,
        memories=memories,
        kind=span.kind,
    )


def _is_asked(view: View, span: _Span, before: str, after: str) -> bool:
    """Whether a question or an instruction stands beside a place, or in another text."""
    return (
        view.around.asked_apart
        or any(mark in part for mark in "?？" for part in (before, after))
        or cues.has_question(after.lstrip())
        or words.INSTRUCTS.match(after.lstrip("-=#*_~+`\"' \t\r\n")) is not None
        or (span.closed and words.ANSWERS.are_in(after))
        or (span.kind == "tag" and bool(after.partition(">")[2].strip()))  # any text behind it
        or cues.has_question(before)
    )


def _whole(view: View) -> Place | None:
    """A text that is documents from its beginning on, as another text or its own end announces."""
    text, around = view.text, view.around
    if not (around.said or words.STEMS.are_in(text[-_NEAR:].lower())) and not any(
        is_question for _, is_question in view.cues(len(text))[0]
    ):
        return None
    start = _skip(text, 0)
    stop, sure = end_of_part(view, start, len(text))
    a, b = trimmed(text, start, stop)
    if not sure or a >= b:
        return None
    after = text[stop : stop + _NEAR]
    retrieved = words.RETRIEVAL.are_in(after) or words.RETRIEVAL.are_in(around.said)
    if not retrieved and not cues.announces_question(after.lstrip()):
        return None
    place = _judged(view, _Span(a, b, sure, 0, "text"))
    # A question with its label: enough for texts under numbers in brackets.
    return place if retrieved else replace(place, points=2)
