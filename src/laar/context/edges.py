"""Find where the documents of a text begin and end, by the short lines around them.

Short lines that always follow a document (`laar.context.recurrence`) are its tail; those that
always precede it are its head. Short lines that are the same in most gaps, and belong to both
documents or to neither, are the separator. If the boundary of two documents is uncertain, they stay
one item, so that none is cut; a first or last document with an uncertain outer edge stays in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from laar.context.blocks import Block, Document
from laar.context.lines import (
    BEGIN,
    END,
    MOST_SHORT,
    NO_LABEL,
    NUMBER,
    SURE_TIMES,
    DocPlace,
    SeenText,
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


_WELL_KNOWN = 4
"""Number of times a document was seen after which its tail is well known."""

_Bound: TypeAlias = "tuple[int, int]"
"""The end of one item and the start of the next."""


class Edges:
    """Decides where items begin and end, from the short lines around all documents of a text."""

    def __init__(self, seen: SeenText, known: Recurrences) -> None:
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
            if gap is not None and (bound := self._between(x, y, gap)):
                bounds.append(bound)
        bounds = self._alike(bounds)
        stop = self._tail(places[-1])
        own = [self._start(places[0]), None if stop is None else lines.ends[stop - 1]]
        first, last = self._outer(*own)
        starts, ends = [first, *(start for _, start in bounds)], [*(end for end, _ in bounds), last]
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
        is_counted = numbered or (
            None not in gaps and len(bounds) == len(pairs) and [first, last] == own
        )
        items = tuple(
            [
                Document(a, b, a, b, None if is_counted else head(text[a:b])[:NAME_CHARS])
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

    def _gap(self, x: DocPlace, y: DocPlace) -> _Gap:
        first, stop = x.line + 1, y.line
        keys = tuple(self._seen.lines.keys[first:stop])
        # A tail or head is certain once it was seen next to different documents.
        own_tail, own_head = self._claim(x, behind=False), self._claim(y, behind=True)
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
        # The numbers of positions are before most documents, and vary.
        self._numbered = 2 * sum(map(self._varies, self._seen.places)) > len(self._seen.places)

    def _varies(self, place: DocPlace) -> bool:
        """Return whether a number before a document differs from earlier ones."""
        seen = self._seen
        above = range(place.line, seen.lines.before(place.nth) - 1, -1)
        return any(
            known != hash(seen.labels.get(at, NO_LABEL)[0])
            for at, (known, _) in zip(above, place.first.labels, strict=False)
        )

    def _between(self, x: DocPlace, y: DocPlace, gap: _Gap) -> _Bound | None:
        """Return the bound in a gap without unknown long lines; None if it is uncertain."""
        lines, size = self._seen.lines, len(self._separator)
        if y.nth in self._seen.stuck:
            return None
        if not gap.sure:
            return self._behind_tail(x, y, gap)
        start, end = gap.start, gap.end
        if gap.masked != self._separator:
            between = self._seen.without_numbers(gap.first, gap.stop)
            found = [
                gap.first + at
                for at in range(len(between) - size + 1)
                if size and between[at : at + size] == self._separator
            ]
            if len(found) != 1:
                return None
            start, end = found[0], found[0] + size
            if start - gap.first > gap.tail or gap.stop - end > gap.head:
                return None
        begin = self._core(y, end)
        return None if begin is None else (lines.ends[start - 1], begin)

    def _behind_tail(self, x: DocPlace, y: DocPlace, gap: _Gap) -> _Bound | None:
        """Return the bound behind a document whose tail is well known; None if it is not."""
        end = self._tail(x) if x.last.times >= _WELL_KNOWN else None
        begin = gap.stop if end is None else end + len(self._separator)
        if (
            end is None
            or begin > gap.stop
            or self._seen.without_numbers(end, begin) != self._separator
        ):
            return None
        start = self._core(y, begin)
        return None if start is None else (self._seen.lines.ends[end - 1], start)

    def _core(self, place: DocPlace, line: int) -> int | None:
        """Return where a document begins on its first line; None if that is uncertain."""
        core = self._seen.lines.cores[line]
        if line not in self._seen.labels:
            return core
        number, name = self._seen.labels[line]
        known, above = place.first.labels, place.line - line
        if above >= len(known) or known[above][1] is None:
            return None
        own_number, own_name = known[above]
        if hash(name) != own_name:  # in this case the name belongs to the frame
            return core if not own_name else None
        core -= len(name)
        if self._numbered:
            return core
        return core - len(number) if hash(number) == own_number else None

    def _claim(self, place: DocPlace, *, behind: bool) -> tuple[int, ...] | None:
        """Return the short lines that always were before a document, or after it; None if unknown.

        That is, until they were seen next to different documents, and since they are short.
        """
        seen, nth = self._seen, place.nth
        line, lines = (place.first, seen.lines) if behind else (place.last, seen.lines)
        if behind:
            own, gap = line.head, range(lines.before(nth), place.line)
            varies = line.before != seen.pairs[nth][0]
        else:
            own, gap = line.tail, range(place.line + 1, lines.after(nth))
            varies = line.after != seen.pairs[nth + 1][1]
        if any(seen.frame.get(i, 0) > line.since for i in gap):
            return None
        return own if varies or not own else None

    def _outer(self, start: int | None, end: int | None) -> tuple[int | None, int | None]:
        """Return where the list starts and ends, given its known documents' edges; None if unknown.

        New documents may be first or last, so that is where the usual text around the list is.
        """
        seen, lines = self._seen, self._seen.lines
        first, last = seen.places[0], seen.places[-1]
        before, after = [(BEGIN, 0)], [(END, len(seen.text))]
        for i in lines.long[: first.nth]:
            key = lines.last_keys[i]
            before.append((0 if self._known.is_new(key) else key, lines.ends[i]))
        for i in lines.long[: last.nth : -1]:
            key = lines.keys[i]
            after.append((0 if self._known.is_new(key) else key, lines.cores[i]))
        start = self._edge(BEGIN, start, before, lines.starts[first.line])
        return start, self._edge(END, end, after, lines.ends[last.line])

    def _edge(
        self, side: int, own: int | None, lines: list[tuple[int, int]], known: int
    ) -> int | None:
        """Return where the list starts or ends.

        Args:
            side: `BEGIN` or `END`.
            own: the edge of the first or last known document; None if unknown.
            lines: each line outside, from the text's edge: its key, 0 if new, and its inner edge.
            known: where that document certainly is.
        """
        text, name = self._seen.text, hash((self._seen.scope, side))
        usual, times = self._known.usual(name)
        if own is not None:
            key, at = lines[-1]
            between = text[slice(*sorted((at, own)))]
            if key or between.strip():
                masked = NUMBER.sub("#", between)
                around = key, len(masked), hash(masked)
                self._seen.around.append((name, around))
                at_edge = at in (0, len(text)) and not between.strip()
                if at_edge or (around == usual and times > 1):
                    return own
        for key, at in lines if times == SURE_TIMES else ():
            edge = at + usual[1] if side == BEGIN else at - usual[1]
            span = sorted((at, edge))
            fits = edge <= known if side == BEGIN else edge >= known
            if key == usual[0] and fits and hash(NUMBER.sub("#", text[slice(*span)])) == usual[2]:
                return edge
        return None

    def _start(self, place: DocPlace) -> int | None:
        """Return the start of a document after unknown text; None if it is uncertain."""
        lines = self._seen.lines
        first = lines.before(place.nth)
        own = self._own(place, behind=True)
        if own is None:
            return self._core(place, first) if first == place.line else None
        at = place.line - len(own)
        # The first line may be the end of a longer line that begins with words of the frame.
        if at < max(0, first - 1) or tuple(lines.keys[at + 1 : place.line]) != own[1:]:
            return None
        if not own or lines.keys[at] == own[0]:
            return self._core(place, at)
        return self._behind_words(at, own[0])

    def _behind_words(self, line: int, key: int) -> int | None:
        """Return where a short line begins after words and a colon; None if it is another line."""
        end = self._seen.lines.ends[line]
        rest = self._seen.text[self._seen.lines.starts[line] : end].partition(": ")[2]
        start, number, _, _, own, _ = parse_line(rest)
        is_it = number == start and hash((self._seen.scope, own)) == key
        return end - len(rest) + start if is_it else None

    def _own(self, place: DocPlace, *, behind: bool) -> tuple[int, ...] | None:
        """Return the short lines next to a document that belong to it; None if unknown."""
        size, lines = len(self._claimed), self._claim(place, behind=behind)
        if lines is not None and len(lines) >= MOST_SHORT:
            return None
        if not lines or not size:
            return lines
        for at in range(len(lines) - size + 1):
            if lines[at : at + size] == self._claimed:
                return lines[at + size :] if behind else lines[:at]
        return None

    def _tail(self, place: DocPlace) -> int | None:
        """Return the first line after a document and its tail; None if it is uncertain."""
        lines = self._seen.lines
        first, stop = place.line + 1, lines.after(place.nth)
        own = self._own(place, behind=False)
        if own is None:
            return first if first == stop else None
        if first + len(own) > stop or tuple(lines.keys[first : first + len(own)]) != own:
            return None
        return first + len(own)
