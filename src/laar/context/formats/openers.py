"""Documents that begin with a label: finds runs of equal labels and the parts that may move.

Where labels count up they number places, so texts move under labels that stay. Where they are names
(``[Doc_17]``, a heading) a document moves with its label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from laar.context.blocks import Block, Item, Refused, count_up
from laar.context.formats.ends import end_of_last, trimmed
from laar.context.formats.order import answered_in_turn, carries_meaning, follow_each_other
from laar.context.formats.places import Place
from laar.context.formats.shapes import OPENERS, Needs, Opener
from laar.context.formats.view import View
from laar.context.settings import Reason

_LONG = 120
"""Mean length from which a numbered text is hardly a step."""

_MOST = 2048
"""Labels looked at in one text."""

_LONGEST_LABEL = 80
_NEAR = 80
_EXAMPLE = re.compile(
    r"(?:\bexamples?|\be\.g\.|for instance|\bformat)\b[^\n]{0,40}\s*\Z", re.IGNORECASE
)
"""Text before labels that only show a form. A search to an end makes ``\\Z`` match there."""

_CLOSER = re.compile(
    r"(?:[<\[{(][^\n\d<>\[\]{}()]{0,30}|(?:\n|\\n)[^\n\d]{0,30})(?P<n>\d{1,4})"
    r"(?:\\[nrt]|[^\d\w\\]){0,10}\Z"  # line ends as JSON writes them, too
)
_CLOSING_TAG = re.compile(r"\s*+</[^<>\n\d]{1,40}\d{1,4}>")
_FREE = tuple(opener for opener in OPENERS if opener.needs is Needs.NOTHING)
_PATTERNS = {opener.name: re.compile(rf"\n{opener.begins}") for opener in OPENERS}


class _Label(NamedTuple):
    start: int  # of the line, in the text
    end: int  # of the label
    name: str
    key: tuple[str, str]


def unannounced(view: View, families: Sequence[str], most: int) -> list[Block]:
    """Blocks whose labels speak for themselves, wherever they stand."""
    if len(view.heads) < 2:
        return []
    for opener in _FREE:
        if opener.family not in families:
            continue
        blocks = [
            block
            for run in _runs(view, opener, 0, len(view.text))
            if (block := _block(view, opener, run, len(view.text), most)) is not None
        ]
        if blocks:
            return blocks
    return []


def label_of(text: str) -> tuple[str, int] | None:
    """The number of a text that begins with a label, and where the text behind it begins."""
    match = _PATTERNS["labelled"].match(f"\n{text[:_LONGEST_LABEL]}")
    return None if match is None else (match["n"], match.end() - 1)


def in_place(view: View, place: Place, families: Sequence[str], most: int) -> Block | None:
    """The block that begins where documents were announced."""
    for opener in OPENERS:
        enough = (
            place.points >= opener.needs
            or (place.memories and opener.needs)
            or (place.kind == "text" and opener.name == "points")
        )
        if opener.family not in families or not enough:
            continue
        start, end = place.start, place.end
        if _PATTERNS[opener.name].match(view.lined, view.lined.rfind("\n", 0, start + 1)) is None:
            continue  # something else comes first
        for run in _runs(view, opener, start, end):
            if text_between(view.text, start, run[0].start):
                break  # something else comes first, so these are inside of it
            block = _block(view, opener, run, end, most, place=place)
            if block is not None:
                return block
            break
    return None


def closing_marks(numbers: Sequence[str], texts: Sequence[str]) -> list[int] | None:
    """Lengths of the marks that repeat each label behind its text, as `</doc1>` does; 0 for none.

    They belong to the places as the labels do. None if only some of the texts have one.
    """
    kinds: set[str] = set()
    lengths: list[int] = []
    for number, text in zip(numbers, texts, strict=True):
        match = _CLOSER.search(text[-_LONGEST_LABEL:])
        if match is None or match["n"] != number:
            if not kinds:
                return [0] * len(texts)
            return None
        kinds.add(match.group().replace(number, ""))
        lengths.append(len(match.group()))
    return lengths if len(kinds) == 1 else None


def text_between(text: str, start: int, end: int) -> bool:
    """Whether anything but white space stands there."""
    return bool(text[start:end].strip())


def _labels(view: View, opener: Opener, start: int, end: int) -> Iterator[_Label]:
    lined = view.lined
    pattern = _PATTERNS[opener.name]
    found = (
        filter(None, map(pattern.match, repeat(lined), view.heads))
        if opener.needs is Needs.NOTHING and start == 0
        else pattern.finditer(lined, start, end + 1)
    )
    group = next((group for group in ("n", "id") if group in pattern.groupindex), None)
    for seen, match in enumerate(found):
        if seen >= _MOST:
            raise Refused(Reason.TOO_MANY)
        first, last = match.span()
        if group is not None:
            a, b = match.span(group)
            name = lined[a:b]
            if not name.isascii() and name.isdecimal():
                name = str(int(name))  # in the digits of its script
            key = lined[first:a].strip().casefold(), lined[b:last].strip()
        else:
            level = match["level"] if "level" in pattern.groupindex else ""
            name, key = "", (level or match.group().strip(), "")
        yield _Label(first, last - 1, name, key)


def _runs(view: View, opener: Opener, start: int, end: int) -> list[list[_Label]]:
    """Labels of one kind that follow each other; a count that begins again begins a run."""
    runs: dict[tuple[str, str], list[list[_Label]]] = {}
    for label in _labels(view, opener, start, end):
        known = runs.setdefault(label.key, [])
        again = label.name in {"0", "1"} and known and known[-1][-1].name not in {"0", ""}
        if not known or (again and label.name.isdigit()):
            known.append([])
        known[-1].append(label)
    found = [run for of_key in runs.values() for run in of_key if len(run) > 1]
    return sorted(found, key=lambda run: run[0].start)


def _block(
    view: View,
    opener: Opener,
    run: list[_Label],
    stop: int,
    most: int,
    *,
    place: Place | None = None,
) -> Block | None:
    """The run as a block, or None where it is none after all."""
    names = [label.name for label in run]
    counted = count_up(names)
    named = bool(names[0])
    own = opener.named or not (opener.needs or len(set(names)) < len(names))
    if named and not counted and (not own or (opener.named and follow_each_other(names))):
        return None
    if len(run) > most:
        raise Refused(Reason.TOO_MANY)
    text = view.text
    if place is None and _EXAMPLE.search(text, max(0, run[0].start - _NEAR), run[0].start):
        return None
    spans = _spans(view, opener, run, stop)
    if spans is None:
        return None
    *others, (last, _) = spans
    if opener.ends:
        end, sure = spans[-1][1], True
    else:
        end, sure = end_of_last(view, last, stop, others)
        if place is not None and place.closed:
            end, sure = stop, True
    spans[-1] = trimmed(text, last, end)
    after = spans[-1][1]
    if counted:
        closers = closing_marks(names, [text[max(a, b - _LONGEST_LABEL) : b] for a, b in spans])
        if closers is None:
            return None
        closing = _CLOSING_TAG.match(text, after)  # cut off before
        after = after if closing is None else closing.end()
        if any(closers):
            spans = [trimmed(text, a, b - own) for (a, b), own in zip(spans, closers, strict=True)]
    if any(a >= b for a, b in spans):
        return None
    if counted and answered_in_turn(names, [text[a:b] for a, b in spans[:2]]):
        return None
    if opener.needs and carries_meaning(
        [text[a:b] for a, b in spans],
        own=place is None or not place.looked_up,
        remembered=place is not None and place.memories,
        points=True,
        parted=opener.named,
    ):
        return None
    short = sum(b - a for a, b in spans) < _LONG * len(spans)
    if place is not None and place.points < opener.needs and not place.memories and short:
        return None
    items = tuple(
        Item(a, b, a, b, label.name or None)
        if counted
        else Item(label.start + _indent(text, label.start), b, a, b, label.name or None)
        for label, (a, b) in zip(run, spans, strict=True)
    )
    kept = items if sure else items[:-1]
    if opener.ends:
        close = opener.ends.format(n=names[-1])
        after = text.find(close, after) + len(close)
    return Block(
        kept,
        after,
        labels_stay=counted,
        shape=opener.name,
        pinned=len(items) - len(kept),
        careful=opener.needs >= Needs.RETRIEVAL and not (place and place.memories),
        start=run[0].start,
    )


def _spans(
    view: View, opener: Opener, run: list[_Label], stop: int
) -> list[tuple[int, int]] | None:
    """Each document's text; the last one's end is still open."""
    text = view.text
    ends = [label.start for label in run[1:]] + [stop]
    if opener.ends:
        ends = [
            text.find(opener.ends.format(n=label.name), label.end, end)
            for label, end in zip(run, ends, strict=True)
        ]
        if min(ends) < 0:
            return None
    return [trimmed(text, label.end, end) for label, end in zip(run, ends, strict=True)]


def _indent(text: str, start: int) -> int:
    at = start
    while text[at : at + 1].isspace():
        at += 1
    return at - start
