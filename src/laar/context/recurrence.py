"""Learn documents by recurrence: a span that recurs between different neighbors is a document.

Nothing is assumed about format, words or language. A text is a sequence of lines; a *long* line is
recognized by its text alone. There is a break between two long lines that were both seen before,
but seldom together. A span between two breaks is a document. Its edge is certain only if nothing
suggests that it is inside a larger one:

- it is next to new text, which may be a new document that begins or ends with a known one;
- it is mostly next to the same line, or mostly so when next to the same line on its other side;
- its line there is mostly in the middle of documents, as headings and shared paragraphs are.

Documents with an uncertain edge between them stay together (`laar.context.edges`), which also
assigns the short lines (labels, rules, fences) between them; these identify nothing. The *frame* is
the text of the prompt around the documents.

Only hashes are kept, salted per process, in tables of fixed size. Each hash includes the scope
(tenant, route and model).
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import pairwise

import numpy as np

from laar.context.blocks import Block
from laar.context.edges import Edges
from laar.context.lines import (
    BEGIN,
    END,
    MOST_SHORT,
    NO_LABEL,
    SURE_TIMES,
    DocPlace,
    LongLine,
    ParsedLine,
    SeenText,
    TextLines,
    common_end,
    common_start,
    parse_line,
)
from laar.latest import Latest

MAX_LINES = 4_000
"""Maximum number of lines examined per text (about 4 ms)."""

LEAST_CHARS = 40
"""Minimum number of characters in a document; shorter pieces are labels and headings."""

MAX_KNOWN_LINES = 60_000
"""Maximum number of long lines known (0.4 KB each); LRU eviction."""

_OFTEN = 3
_OFTEN_TEXTS = 2
"""A line is the frame's, not a document's, from when texts in which it occurs at least `_OFTEN`
times, and with most documents, outnumber other texts by `_OFTEN_TEXTS`."""

_WELL_KNOWN, _LEARN_EVERY = 32, 8
"""Once the lines of all documents were learned `_WELL_KNOWN` times, laar learns from only one such
text in `_LEARN_EVERY`, to keep the documents from being evicted and to notice wrong ones."""

MAX_PARSED = 30_000
"""Maximum number of parsed lines in the cache (0.2 KB each); beyond it, the cache is cleared."""

MAX_FRAME = 4_000
"""Maximum number of lines counted to recognize the frame, and of scopes for which the usual text
around the documents is known."""

_MOSTLY = 0.5
"""Two lines belong together if one is next to the other in more than this share of its cases."""

_NEARLY = 0.75
"""The same share if only the cases next to the same line, or all in documents, are counted."""

_SLOT_BITS = 21  # 4 MB; 500 chunks of 1 KB collide in 1 % of their lines
_MASK = (1 << _SLOT_BITS) - 1
_FULL = (1 << 16) - 1


class _Together:
    """Counts of adjacent pairs of lines, and of each line before and after any other.

    The size is fixed, so collisions make some counts too high.
    """

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 << _SLOT_BITS))

    def note(self, *keys: int) -> None:
        """Count keys; halve all counts if one reaches its maximum."""
        counts = self._counts
        for key in keys:
            counts[key & _MASK] += 1
            if counts[key & _MASK] == _FULL:
                np.frombuffer(counts, np.uint16)[:] >>= 1

    def often(self, whole: int, part: int, share: float, least: int) -> bool:
        """Return whether a part was seen in the whole in more than a share of its cases."""
        count = self._counts[whole & _MASK]
        return count > max(least, share * self._counts[part & _MASK])

    def mostly(self, pair: int, a: int, b: int) -> bool:
        """Return whether one of two lines is mostly next to the other, or was so once of twice."""
        counts = self._counts
        most, left, right = counts[pair & _MASK], counts[a & _MASK], counts[b & _MASK]
        return most > 0 and (most > _MOSTLY * min(left, right) or max(left, right) == 2)


class Recurrences:
    """The long lines of all scopes seen before, and what was next to them."""

    def __init__(self) -> None:
        self.together = _Together()
        # Lines that often recur within a text: how many more such texts there were than others, and
        # the number of the text since which they are the frame's.
        self._often: Latest[int, int] = Latest(MAX_FRAME)
        self._framed: Latest[int, int] = Latest(MAX_FRAME)
        self._parsed: dict[int, ParsedLine] = {}
        self._lines: Latest[int, LongLine] = Latest(MAX_KNOWN_LINES)
        self._around: Latest[int, tuple[tuple[int, int, int], int]] = Latest(MAX_FRAME)
        self._without_news = self._learned = 0  # texts

    def __len__(self) -> int:
        """Return the number of lines held."""
        return len(self._lines)

    def usual(self, side: int) -> tuple[tuple[int, int, int], int]:
        """Return what is usually before the first document, or after the last, and how often."""
        return self._around.get(side, ((0, 0, 0), 0))

    def is_new(self, key: int) -> bool:
        """Return whether a long line was not seen before."""
        return key not in self._lines

    def find(self, scope: int, text: str) -> tuple[Block | None, SeenText | None]:
        """Return the documents in a text, and the argument for `learn`; either may be None."""
        if text.count("\n") > MAX_LINES:
            return None, None
        seen = self._read(scope, text)
        if not seen.lines.long:
            return None, None
        self._gather(seen)
        return Edges(seen, self).block(), seen

    def _read(self, scope: int, text: str) -> SeenText:
        """Return the lines of a text, and their labels."""
        lines = starts, cores, ends, keys, last_keys, long = TextLines([], [], [], [], [], [])
        seen = SeenText(scope, text, lines)
        parsed, framed = self._parsed, self._framed
        at, size, met = 0, len(text), False
        while at < size:
            stop = text.find("\n", at)
            if stop == at:
                at += 1
                continue
            line = text[at : stop if stop >= 0 else size]
            start, number, core, end, own, is_long = parsed.get(hash(line)) or self._parse(line)
            if end:
                n = len(keys)
                key = hash((scope, own))
                if is_long and key not in framed:
                    if not met and key not in self._lines and (lead := self._lead(scope, line)):
                        # Words of the frame that precede the first document become a separate line.
                        at += lead
                        met = True
                        continue
                    long.append(n)
                elif is_long:
                    seen.frame[n] = framed[key]
                if core > start:
                    seen.labels[n] = line[start:number], line[number:core]
                starts.append(at + start)
                cores.append(at + core)
                ends.append(at + end)
                keys.append(key)
                last_keys.append(key)
            if stop < 0:
                break
            at = stop + 1
        return seen

    def _lead(self, scope: int, line: str) -> int:
        """Return the length of words up to a colon before a known line; 0 if there are none."""
        rest = line.partition(": ")[2]
        parsed = self._parsed.get(hash(rest)) or self._parse(rest)
        return len(line) - len(rest) if hash((scope, parsed[4])) in self._lines else 0

    def _parse(self, line: str) -> ParsedLine:
        """Parse a line; results are cached because most lines recur."""
        if len(self._parsed) >= MAX_PARSED:
            self._parsed.clear()
        return self._parsed.setdefault(hash(line), parse_line(line))

    def _gather(self, seen: SeenText) -> None:
        """Make one line of each document, and find the edges that are uncertain."""
        lines, pairs = seen.lines, seen.pair()
        if seen.frame:
            counted = [*map(seen.counts, range(len(pairs)))]
        else:  # the same, in less time
            counted = [(hash((a, b, 0)), hash((a, 0)), hash((0, b))) for a, b in pairs]
        seen.counted = counted
        known = [self._lines.get(lines.keys[i]) for i in lines.long]
        breaks = [n for n, keys in enumerate(counted) if self._is_break(n, known, keys)]
        spans: list[DocPlace] = []
        for start, stop in pairwise(breaks):
            first, last = lines.long[start], lines.long[stop - 1]
            if None in known[start:stop] or lines.ends[last] - lines.cores[first] < LEAST_CHARS:
                continue
            spans.append(
                DocPlace(first, last, known[start] or LongLine(), known[stop - 1] or LongLine())
            )
            for _, ended, begun in counted[start + 1 : stop]:
                seen.inner += hash((ended, END)), hash((BEGIN, begun))
        if spans:
            seen.join(spans)
        often = self.together.often
        for place in seen.places:
            nth, (alone, before, after, between) = place.nth, seen.beside(place)
            (start, _, begun), (stop, ended, _) = seen.counts(nth), seen.counts(nth + 1)
            for at, line, triple, edge, inner, own in (
                (nth, before, after, start, hash((BEGIN, begun)), begun),
                (nth + 1, after, before, stop, hash((ended, END)), ended),
            ):
                if (
                    often(line, alone, _MOSTLY, 0)
                    or often(between, triple, _NEARLY, 1)
                    or often(inner, own, _NEARLY, 1)
                    or (often(edge, edge, 0, 0) and not often(alone, alone, 0, 0))
                ):
                    seen.stuck.add(at)

    def _is_break(self, nth: int, known: list[LongLine | None], keys: tuple[int, int, int]) -> bool:
        """Return whether a document may end before a long line, and another begin with it."""
        a, b = known[nth - 1] if nth else None, known[nth] if nth < len(known) else None
        if nth and a is None:  # next to new text, only what varied there before is an edge
            return b is not None and not b.before
        if nth < len(known) and b is None:
            return a is not None and not a.after
        return not self.together.mostly(*keys)

    # -- learning ------------------------------------------------------------------------------

    def learn(self, seen: SeenText) -> None:
        """Learn from a text that was sent; if nothing is new, only from one in `_LEARN_EVERY`."""
        lines, nths = seen.lines, [place.nth for place in seen.places]
        is_known = len(nths) > 2 and nths[-1] - nths[0] < len(nths)
        if is_known and all(place.first.times >= _WELL_KNOWN for place in seen.places):
            self._without_news += 1
            if self._without_news % _LEARN_EVERY:
                return
        self._learned += 1
        self._learn_frame([lines.keys[i] for i in lines.long], len(seen.places))
        for side, now in seen.around:
            usual, times = self.usual(side)
            if usual == now or not times:
                self._around[side] = now, min(times + 1, SURE_TIMES)
            else:
                self._around[side] = usual, times - 1
        for keys in seen.counted:
            self.together.note(*keys)
        for place in seen.places:
            self.together.note(*seen.beside(place))
        self.together.note(*seen.inner)
        first, last = (nths[0], nths[-1]) if nths else (len(lines.long), -1)
        for nth, i in enumerate(lines.long):
            # What is before the first document and after the last is the frame's.
            before, after = seen.pairs[nth][0], seen.pairs[nth + 1][1]
            start = self._learn_line(lines.keys[i])
            start.before = before if start.before in (-1, before) else 0
            self._learn_head(seen, start, nth, follows=nth > first)
            end = self._learn_line(lines.last_keys[i])
            end.after = after if end.after in (-1, after) else 0
            if nth < last:
                self._learn_tail(seen, end, nth)

    def _learn_frame(self, keys: list[int], documents: int) -> None:
        """Record which of a text's long lines occur in it often."""
        frame, often = self._often, max(_OFTEN, documents // 2 + 1)
        for key, count in Counter(keys).items():
            texts = frame.get(key, 0) + (1 if count >= often else -1)
            if texts > 0:
                frame[key] = texts
            else:
                frame.pop(key, None)
            if texts >= _OFTEN_TEXTS:
                self._framed[key] = self._framed.get(key, self._learned + 1)

    def _learn_line(self, key: int) -> LongLine:
        """Record a long line."""
        line = self._lines[key] = self._lines.get(key) or LongLine()
        line.times += 1
        return line

    def _renew(self, seen: SeenText, line: LongLine, gap: range) -> None:
        """Forget the short lines next to a line if some of them were long then."""
        if line.head is line.tail is None or any(seen.frame.get(i, 0) > line.since for i in gap):
            line.head = line.tail = None
            line.since = self._learned

    def _learn_head(self, seen: SeenText, line: LongLine, nth: int, *, follows: bool) -> None:
        """Record the labels of a line, and the short lines before it if a document may be there."""
        lines, first = seen.lines, seen.lines.long[nth]
        if follows:
            self._renew(seen, line, range(lines.before(nth), first))
            head = tuple(lines.keys[lines.before(nth) : first][-MOST_SHORT:])
            line.head = head if line.head is None else common_end(line.head, head)
        above = [seen.labels.get(first - k, NO_LABEL) for k in range(len(line.head or ()) + 1)]
        # The hash of an empty string is 0.
        now: list[tuple[int | None, int | None]] = [(hash(a), hash(b)) for a, b in above]
        if not follows:
            now[1:] = line.labels[1:]
        if line.labels != now:
            known = [*line.labels, *now[len(line.labels) :]]
            line.labels = [
                (number if number == old_number else None, name if name == old_name else None)
                for (number, name), (old_number, old_name) in zip(now, known, strict=False)
            ]

    def _learn_tail(self, seen: SeenText, line: LongLine, nth: int) -> None:
        """Record the short lines after a line."""
        lines = seen.lines
        self._renew(seen, line, range(lines.long[nth] + 1, lines.after(nth)))
        tail = tuple(lines.keys[lines.long[nth] + 1 : lines.after(nth)][:MOST_SHORT])
        if line.tail != tail:
            line.tail = tail if line.tail is None else common_start(line.tail, tail)
