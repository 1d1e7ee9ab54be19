"""Find where the documents of a text begin and end, by the short lines around them.

Short lines that always follow a document (`laar.context.recurrence`) are its tail; those that
always precede it are its head. Short lines that are the same in most gaps, and belong to both
documents or to neither, are the separator. If the boundary of two documents is uncertain, they stay
one item, so that none is cut; a first or last document with an uncertain outer edge stays in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from laar.context.blocks import Block, Item
from laar.context.lines import (
    KEY_LINES,
    MOST_SHORT,
    NO_LABEL,
    NUMBER,
    Place,
    Seen,
    common_end,
    common_start,
    parse_line,
)
from laar.context.notes import head

if TYPE_CHECKING:
    from laar.context.recurrence import Recurrences

NAME_CHARS = 24
"""Number of first characters that an order note quotes if documents can't be told by number."""


class _Gap(NamedTuple):
    """The short lines between two documents. Each document claims those of its tail or head.

    Args:
        first, stop: range of the lines.
        start, end: range of the lines that are claimed by both documents or by neither.
        masked: text of these lines, without numbers.
        tail, head: number of lines that the previous and the next document claim.
        sure: whether the claims are certain; true if there are no lines.
    """

    first: int
    stop: int
    start: int
    end: int
    masked: tuple[str, ...]
    tail: int
    head: int
    sure: bool


_Bound: TypeAlias = "tuple[int, int]"
"""The end of one item and the start of the next."""


class Edges:
    """Decides where items begin and end, from the short lines around all documents of a text."""

    def __init__(self, seen: Seen, known: Recurrences) -> None:
        self._seen = seen
        self._known = known
        self._separator: tuple[str, ...] = ()  # short lines of most gaps, without numbers
        self._claimed: tuple[int, ...] = ()  # keys of the separator, if documents claim it
        self._numbered = False

    def block(self) -> Block | None:
        """Return the items from the first to the last known document; None if fewer than two."""
        text, lines, places = self._seen.text, self._seen.lines, self._seen.places
        if len(places) < 2:
            return None
        pairs = list(pairwise(places))
        gaps = [self._gap(x, y) if y.nth == x.nth + 1 else None for x, y in pairs]
        self._separate([gap for gap in gaps if gap is not None and gap.sure])
        bounds: list[_Bound] = []
        for (x, y), gap in zip(pairs, gaps, strict=True):
            if gap is None:
                bounds += self._around_unknown(x, y)
            elif bound := self._between(x, y, gap):
                bounds.append(bound)
        bounds = self._alike(bounds)
        starts = [self._start(places[0]), *(start for _, start in bounds)]
        stop = self._tail(places[-1])
        ends = [*(end for end, _ in bounds), None if stop is None else lines.ends[stop - 1]]
        spans = [
            (start, end)
            for start, end in zip(starts, ends, strict=True)
            if start is not None and end is not None
        ]
        if len(spans) < 2:
            return None
        gaps_differ = len(bounds) == 1 or len({text[end:start] for end, start in bounds}) > 1
        numbers = gaps_differ and any("#" in line for line in self._separator)
        numbered = self._numbered or numbers
        # If an item contains several documents, a note that counts items would be misleading.
        is_counted = numbered or (None not in gaps and len(bounds) == len(pairs))
        items = tuple(
            [
                Item(a, b, a, b, None if is_counted else head(text[a:b])[:NAME_CHARS])
                for a, b in spans
            ]
        )
        return Block(items, items[-1].end, numbered, shape="recurring", fixed=numbered)

    def _alike(self, bounds: list[_Bound]) -> list[_Bound]:
        """Return the bounds with the most common gap, whitespace included; all if no gap recurs."""
        gaps = [self._seen.text[end:start] for end, start in bounds]
        if len(set(gaps)) < 2:
            return bounds
        gaps = [NUMBER.sub("#", gap) for gap in gaps]
        ((usual, count),) = Counter(gaps).most_common(1)
        if 2 * count <= len(gaps):
            return bounds
        return [bound for bound, gap in zip(bounds, gaps, strict=True) if gap == usual]

    def _gap(self, x: Place, y: Place) -> _Gap:
        first, stop = x.line + 1, y.line
        keys = tuple(self._seen.lines.keys[first:stop])
        # A tail or head is certain once it was seen next to different documents.
        own_tail = None if x.piece.next and x.piece.tail else x.piece.tail
        own_head = None if y.piece.previous and y.piece.head else y.piece.head
        tail = len(common_start(own_tail, keys)) if own_tail else 0
        head = len(common_end(own_head, keys)) if own_head else 0
        start, end = sorted((first + tail, stop - head))
        sure = not keys or (own_tail is not None and own_head is not None)
        masked = self._seen.without_numbers(start, end) if start < end else ()
        return _Gap(first, stop, start, end, masked, tail, head, sure)

    def _separate(self, gaps: Sequence[_Gap]) -> None:
        """Find the separator: text that both documents or neither claim, the same in most gaps."""
        for lines, count in Counter([gap.masked for gap in gaps]).most_common(1):
            if 2 * count > len(gaps) and len(lines) <= MOST_SHORT:  # longer runs are slow to find
                self._separator = lines
        for gap in gaps:
            is_shared = gap.tail + gap.head > gap.stop - gap.first
            if is_shared and gap.masked == self._separator:
                self._claimed = tuple(self._seen.lines.keys[gap.start : gap.end])
                break
        self._numbered = any(
            number is None for place in self._seen.places for number, _ in place.piece.labels
        )

    def _between(self, x: Place, y: Place, gap: _Gap) -> _Bound | None:
        """Return the bound in a gap without unknown long lines; None if it is uncertain."""
        lines, size = self._seen.lines, len(self._separator)
        if self._known.together.mostly(lines.last_keys[x.line], lines.keys[y.line]):
            return None
        start, end = gap.start, gap.end
        if not gap.sure or gap.masked != self._separator:
            between = self._seen.without_numbers(gap.first, gap.stop)
            found = [
                gap.first + at
                for at in range(len(between) - size + 1)
                if size and between[at : at + size] == self._separator
            ]
            if len(found) != 1:
                return None if gap.sure else self._one_sided(x, y, gap)
            start, end = found[0], found[0] + size
            if gap.sure and (start - gap.first > gap.tail or gap.stop - end > gap.head):
                return None
        begin = self._core(y, end)
        return None if begin is None else (lines.ends[start - 1], begin)

    def _one_sided(self, x: Place, y: Place, gap: _Gap) -> _Bound | None:
        """Return the bound in a gap between a document with known edges and one without, if any."""
        lines, size = self._seen.lines, len(self._separator)
        end = self._tail(x)
        if end is not None:
            begin = end + size
            if begin > gap.stop or self._seen.without_numbers(end, begin) != self._separator:
                return None
            start = self._core(y, begin)
        else:
            start = self._start(y)
            own = self._own(y.piece.head, sure=not y.piece.previous, behind=True)
            end = gap.stop - len(own or ()) - size
            if end < gap.first or self._seen.without_numbers(end, end + size) != self._separator:
                return None
        return None if start is None else (lines.ends[end - 1], start)

    def _core(self, place: Place, line: int) -> int | None:
        """Return where a document begins on its first line; None if that is uncertain."""
        core = self._seen.lines.cores[line]
        if line not in self._seen.labels:
            return core
        number, name = self._seen.labels[line]
        known, above = place.piece.labels, place.line - line
        if above >= len(known) or known[above][1] is None:
            return None
        own_number, own_name = known[above]
        if hash(name) != own_name:  # in this case the name belongs to the frame
            return core if not own_name else None
        core -= len(name)
        if self._numbered or not own_number:
            return core
        return core - len(number) if hash(number) == own_number else None

    def _start(self, place: Place) -> int | None:
        """Return the start of a document after unknown text; None if it is uncertain."""
        lines = self._seen.lines
        first = lines.before(place.nth)
        own = self._own(place.piece.head, sure=not place.piece.previous, behind=True)
        if own is None:
            return self._core(place, first) if first == place.line else None
        at = place.line - len(own)
        if at > 0 and self._is_below_heading(place, at):
            return None
        # The first line may be the end of a longer line that begins with words of the frame.
        if at < max(0, first - 1) or tuple(lines.keys[at + 1 : place.line]) != own[1:]:
            return None
        if not own or lines.keys[at] == own[0]:
            return self._core(place, at)
        return self._behind_words(at, own[0])

    def _is_below_heading(self, place: Place, at: int) -> bool:
        """Return whether lines before `at` may belong to the document that begins there."""
        lines, size = self._seen.lines, len(self._separator)
        if size and self._seen.without_numbers(max(0, at - size), at) == self._separator:
            return False
        before = [lines.keys[i] for i in lines.long[max(0, place.nth - KEY_LINES) : place.nth]]
        return lines.keys[at - 1] in self._known.frame or any(
            self._known.is_heading(*before[start:]) for start in range(len(before))
        )

    def _behind_words(self, line: int, key: int) -> int | None:
        """Return where a short line begins after words and a colon; None if it is another line."""
        end = self._seen.lines.ends[line]
        rest = self._seen.text[self._seen.lines.starts[line] : end].partition(": ")[2]
        start, number, _, _, own, _ = parse_line(rest)
        is_it = number == start and hash((self._seen.scope, own)) == key
        return end - len(rest) + start if is_it else None

    def _own(
        self, lines: tuple[int, ...] | None, *, sure: bool, behind: bool
    ) -> tuple[int, ...] | None:
        """Return the short lines next to a document that belong to it; None if unknown."""
        size = len(self._claimed)
        if lines is not None and len(lines) >= MOST_SHORT:
            return None
        if not lines or not size:
            return lines if sure or not lines else None
        for at in range(len(lines) - size + 1):
            if lines[at : at + size] == self._claimed:
                return lines[at + size :] if behind else lines[:at]
        return None

    def _tail(self, place: Place) -> int | None:
        """Return the first line after a document and its tail; None if it is uncertain."""
        lines = self._seen.lines
        first, stop = place.line + 1, lines.after(place.nth)
        own = self._own(place.piece.tail, sure=not place.piece.next, behind=False)
        if own is None:
            return first if first == stop else None
        if first + len(own) > stop or tuple(lines.keys[first : first + len(own)]) != own:
            return None
        if place is self._seen.places[-1]:
            rest, size = self._seen.without_numbers(first + len(own), stop), len(self._separator)
            is_between = size and rest[:size] == self._separator
            if rest and not is_between and not self._known.is_closing(self._seen.scope, rest):
                return None  # they may belong to another document that differs only in these lines
        return first + len(own)

    def _around_unknown(self, x: Place, y: Place) -> list[_Bound]:
        """Return those bounds that are certain of an unknown item between two documents."""
        lines, size = self._seen.lines, len(self._separator)
        bounds: list[_Bound] = []
        end = self._tail(x)
        if end is not None and self._seen.without_numbers(end, end + size) == self._separator:
            after = end + size
            begin = lines.starts[after]
            if self._numbered:
                begin += len(self._seen.labels.get(after, NO_LABEL)[0])
            bounds.append((lines.ends[end - 1], begin))
        start = self._start(y)
        if start is not None:
            line = bisect_right(lines.starts, start) - 1
            if self._seen.without_numbers(max(0, line - size), line) == self._separator:
                bounds.append((lines.ends[line - size - 1], start))
        return [bound for bound in bounds if bound[0] < bound[1]]
