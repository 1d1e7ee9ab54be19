"""Learn documents by recurrence: a span that recurs between different neighbours is a document.

Nothing is assumed about format, words or language. A text is a sequence of lines; a *long* line is
recognized by its text alone. Two adjacent lines are joined as long as either is mostly seen next to
the other, and separated otherwise. A span between two breaks that recurs with a different line
before it and a different one after it is a document; from then on it is found anywhere. Overlaps of
chunks, and paragraphs or headings shared by many chunks, do not qualify: a part that always has the
same neighbour is not a separate document. A span that always follows the same line, such as its
file's name, is a document together with that line.

    learn:  lines -> breaks -> pieces -> (different neighbours on both sides) -> documents
    find:   lines -> documents, longest first -> owners of the short lines between them

Short lines (labels, rules, fences) identify nothing. Short lines that always follow a document are
its tail, and those that always precede it its head. Short lines that belong to both neighbours or
to neither, and are equal in all gaps, are the separator. If their boundary is uncertain, two
neighbours stay one item, so that no document is cut; a first or last document with an uncertain
outer edge stays in place. The *frame* is the text of the prompt around the documents.

Only hashes are kept, salted per process, in tables of fixed size. Each hash includes the scope
(tenant, route and model).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from operator import eq
from typing import NamedTuple, TypeAlias

import numpy as np

from laar.context.blocks import Block, Item
from laar.context.notes import head
from laar.latest import Latest

MAX_LINES = 4_000
"""Maximum number of lines examined per text (about 4 ms)."""

LONG_LINE = 24
"""Minimum number of characters in a long line, not counting labels and rules."""

LEAST_CHARS = 40
"""Minimum number of characters in a document; shorter pieces are labels and headings."""

MOST_SHORT = 24
"""Maximum number of consecutive short lines considered as tail or head of a document."""

MAX_DOCUMENTS = 30_000
MAX_PIECES = 30_000
"""Maximum number of documents and candidate pieces (0.8 KB each); LRU eviction."""

MAX_ALIKE = 12
"""Maximum number of documents that share their first `_KEY_LINES`; LRU eviction."""

_COMPARED = 8
"""Maximum number of characters compared with documents that begin alike, as a multiple of the
text's length: one for each document found, and few more unless the text is hostile."""

_KEY_LINES = 3
"""Number of long lines by which a document is looked up: chunks may share the first two, their
file's name and address."""

_LONGEST_HEADING = 120
"""Maximum length of a single line that may be a heading or a source instead of a document."""

_OFTEN = 3
_OFTEN_TEXTS = 2
"""A line belongs to the frame, not to a document, if the texts in which it occurs at least `_OFTEN`
times outnumber the others by `_OFTEN_TEXTS`."""

_WELL_KNOWN, _LEARN_EVERY = 16, 8
"""Once each document of a text has been learned from `_WELL_KNOWN` texts, laar learns from only one
such text in `_LEARN_EVERY`: it saves the documents from eviction, and may refute them."""

NAME_CHARS = 24
"""Number of characters by which an order note identifies documents that it can't count."""

MAX_PARSED = 30_000
"""Maximum number of cached parsed lines (0.2 KB each); then the cache is cleared."""

MAX_FRAME = 4_000
"""Maximum number of lines counted to recognize the frame, and of scopes for which the usual lines
after the last document are known."""

_MOSTLY = 0.5
"""Two lines are one piece if either is seen next to the other in over this share of cases."""

_SURE_TIMES = 8
"""Maximum count of a scope's usual closing: that many texts with other closings replace it."""

_SLOT_BITS = 21  # 4 MB; 500 chunks of 1 KB collide in 1 % of their lines
_MASK = (1 << _SLOT_BITS) - 1
_FULL = (1 << 16) - 1
_BEGIN, _END = 1, 2  # the edges of a text, as neighbours

_LABEL = re.compile(
    r"((?:[-*•+>]\s+)?(?:[#=*\-_\[(【<]{0,6}\s?(?:[^\W\d]{1,20}[\s_:#.\-]{0,3})?\d{1,6}"
    r"(?:[\])】>.:|]{1,3}\s*|\s*+[=*\-_#]{1,8}$|\s+))?)"
    r"((?:[^\s:]{1,40}:(?:\s+|$))?)"
)
"""Text that may precede a document on its first line: a bullet or number, a name with a colon."""

_NUMBER = re.compile(r"\d+")
_RULE = "-=#*_~+|`.:<>/ \t\r"


_Parsed: TypeAlias = "tuple[int, int, int, int, int, bool]"
"""A parsed line: start; end of its number, label and text; hash of its identifying part; whether it
is long. The last end is 0 for a blank line."""


class Lines(NamedTuple):
    """The nonblank lines of a text; a known document is a single line.

    Args:
        starts: start of each line, after its indentation.
        cores: start of the text after a possible label.
        ends: end without trailing whitespace.
        keys: hash of a long line's core, a whole short line, or a document's first line.
        last_keys: the same, with a document's last line.
        long: indices of long lines, including documents.
    """

    starts: list[int]
    cores: list[int]
    ends: list[int]
    keys: list[int]
    last_keys: list[int]
    long: list[int]


@dataclass(slots=True, eq=False)
class _Piece:
    """A span seen before, from its first to its last long line.

    Args:
        before, after: keys of the adjacent long lines; 0 once they have varied.
        tail, head: short lines that always followed it, or preceded it; None if unknown.
        labels: hashes of number and name at the start of its first long line, then of each line of
            its head from the last one up; 0 if none, None if they have varied.
        previous, next: the adjacent documents; 0 once they have varied.
        times: number of texts learned from that contained it.
    """

    before: int
    after: int
    tail: tuple[int, ...] | None = None
    head: tuple[int, ...] | None = None
    labels: list[tuple[int | None, int | None]] = field(default_factory=list)
    previous: int = -1
    next: int = -1
    times: int = 1


class Place(NamedTuple):
    """A document in a text: its line, its index among long lines, and its piece."""

    line: int
    nth: int
    piece: _Piece


@dataclass(slots=True)
class Seen:
    """An examined text, to learn from once its request is accepted."""

    scope: int
    text: str
    lines: Lines
    places: list[Place]
    left: int  # characters that may still be compared with documents
    labels: dict[int, tuple[str, str]] = field(default_factory=dict)


class _Together:
    """Counts of adjacent pairs of lines, and of the neighbours of each line.

    The size is fixed: collisions make some counts too high.
    """

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 << _SLOT_BITS))

    def note(self, keys: Iterable[int]) -> None:
        """Count pairs and each line's neighbours; halve all counts if one reaches its maximum."""
        counts = self._counts
        for key in keys:
            counts[key & _MASK] += 1
            if counts[key & _MASK] == _FULL:
                np.frombuffer(counts, np.uint16)[:] >>= 1

    def mostly(self, a: int, b: int, *, least: int = 2) -> bool:
        """Return whether either line is mostly seen next to the other, `least` times at least."""
        counts = self._counts
        pair = counts[hash((a, b)) & _MASK]
        return pair >= least and 2 * pair > _MOSTLY * min(counts[a & _MASK], counts[b & _MASK])

    def always(self, line: int, a: int, b: int) -> bool:
        """Return whether one of two lines was only ever seen next to the other."""
        pair = self._counts[hash((a, b)) & _MASK]
        return pair > 0 and 2 * pair >= self._counts[line & _MASK]


class Recurrences:
    """The known documents of all scopes, and pieces that may become documents."""

    def __init__(self) -> None:
        self.together = _Together()
        self.frame: Latest[int, int] = Latest(MAX_FRAME)
        """Lines that often occur several times in a text, with the number of these texts."""
        self._parsed: dict[int, _Parsed] = {}
        self._pieces: Latest[int, _Piece] = Latest(MAX_PIECES)
        self._closings: Latest[int, tuple[int, int]] = Latest(MAX_FRAME)  # by scope, with a count
        self._without_news = 0
        # By the keys of the first long lines: documents by hash, with length and last line's key.
        self._documents: OrderedDict[tuple[int, ...], Latest[int, tuple[int, int]]] = OrderedDict()
        self._begun: Counter[tuple[int, ...]] = Counter()  # documents by the start of these keys
        # By first key, the keys of a document if no other begins so: then that key identifies it.
        self._alone: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Return the number of pieces held."""
        return len(self._pieces)

    def is_heading(self, *keys: int) -> bool:
        """Return whether long lines precede several documents, such as the name of their file."""
        return self._begun[keys] - (keys in self._documents) > 1

    def is_closing(self, scope: int, lines: tuple[str, ...]) -> bool:
        """Return whether these short lines usually follow the last document."""
        return self._closings.get(scope, (0, 0))[0] == hash(lines)

    def find(self, scope: int, text: str) -> tuple[Block | None, Seen | None]:
        """Return the documents in a text, and the argument for `learn`; either may be None."""
        if text.count("\n") > MAX_LINES:
            return None, None
        seen = self._read(scope, text)
        if not seen.lines.long:
            return None, None
        return _Bounds(seen, self).block(), seen

    def _read(self, scope: int, text: str) -> Seen:
        """Return the lines of a text, each known document as one line, and their labels."""
        lines = starts, cores, ends, keys, last_keys, long = Lines([], [], [], [], [], [])
        seen = Seen(scope, text, lines, [], _COMPARED * len(text))
        parsed, frame, begun = self._parsed, self.frame, self._begun
        at, size = 0, len(text)
        while at < size:
            stop = text.find("\n", at)
            if stop == at:
                at += 1
                continue
            line = text[at : stop if stop >= 0 else size]
            start, number, core, end, own, is_long = parsed.get(hash(line)) or self._parse(line)
            if end:
                n = len(keys)
                key = last_key = hash((scope, own))
                begin, end = at + core, at + end
                if is_long and (not frame or frame.get(key, 0) < _OFTEN_TEXTS):
                    known = (key,) in begun
                    found = self._known(seen, begin, key, stop) if known else None
                    if found is not None:
                        end, last_key, piece = found
                        seen.places.append(Place(n, len(long), piece))
                        stop = text.find("\n", end)
                    elif not (known or seen.places) and (lead := self._lead(scope, line)):
                        # Words of the frame precede the first document: make them a separate line.
                        at += lead
                        continue
                    long.append(n)
                if core > start:
                    seen.labels[n] = line[start:number], line[number:core]
                starts.append(at + start)
                cores.append(begin)
                ends.append(end)
                keys.append(key)
                last_keys.append(last_key)
            if stop < 0:
                break
            at = stop + 1
        seen.places[:] = self._unjoined(lines, seen.places)
        return seen

    def _lead(self, scope: int, line: str) -> int:
        """Return the length of the words up to a colon that a known document follows; else 0."""
        rest = line.partition(": ")[2]
        parsed = self._parsed.get(hash(rest)) or self._parse(rest)
        return len(line) - len(rest) if (hash((scope, parsed[4])),) in self._begun else 0

    def _known(self, seen: Seen, begin: int, key: int, stop: int) -> tuple[int, int, _Piece] | None:
        """Return end, last line's key and piece of the longest known document at `begin`."""
        scope, text = seen.scope, seen.text
        keys = self._alone.get(key) or self._key(scope, text, key, stop, len(text))
        for count in range(len(keys), 0, -1):
            alike = self._documents.get(keys[:count])
            if not alike or (count < _KEY_LINES and self.is_heading(*keys[:count])):
                continue
            sizes = alike.items()
            longest = sorted(sizes, key=lambda found: -found[1][0]) if len(sizes) > 1 else sizes
            for whole, (size, last_key) in longest:
                end = begin + size
                if end > len(text) or text[end : end + 1].strip() or seen.left < size:
                    continue
                seen.left -= size
                if hash((scope, text[begin:end])) != whole:
                    continue
                if count == 1 and size <= _LONGEST_HEADING and not self._is_among(seen, keys):
                    continue
                piece = self._pieces.get(whole)
                if piece is not None:
                    return end, last_key, piece
        return None

    def _is_among(self, seen: Seen, keys: tuple[int, ...]) -> bool:
        """Return whether known documents, or an edge, are on both sides of the line being read."""
        places = seen.places
        follows = not places or places[-1].nth == len(seen.lines.long) - 1
        return follows and (len(keys) == 1 or (keys[1],) in self._begun)

    def _key(self, scope: int, text: str, key: int, stop: int, end: int) -> tuple[int, ...]:
        """Return the keys of a long line that ends at `stop`, and of the next ones up to `end`."""
        keys = [key]
        for _ in range(MOST_SHORT):
            if len(keys) == _KEY_LINES or not 0 <= stop < end - 1:
                break
            at, stop = stop + 1, text.find("\n", stop + 1)
            line = text[at : stop if stop >= 0 else len(text)]
            parsed = self._parsed.get(hash(line)) or self._parse(line)
            if parsed[5]:
                keys.append(hash((scope, parsed[4])))
        return tuple(keys)

    def _parse(self, line: str) -> _Parsed:
        """Parse a line, cached since most lines recur."""
        if len(self._parsed) >= MAX_PARSED:
            self._parsed.clear()
        return self._parsed.setdefault(hash(line), _parse_line(line))

    def _unjoined(self, lines: Lines, places: list[Place]) -> list[Place]:
        """Return the places without those joined to an adjacent line: they are parts of a piece."""
        known = {place.nth for place in places}
        return [
            place
            for place in places
            if not (
                (place.nth - 1 not in known and self._joins(lines, place.nth - 1, 0))
                or (place.nth + 1 not in known and self._joins(lines, place.nth, 1))
            )
        ]

    def _joins(self, lines: Lines, nth: int, which: int) -> bool:
        """Return whether a long line has only been seen next to its successor.

        If `which` is 1, return whether the successor has only been seen next to the line.
        """
        if not 0 <= nth < len(lines.long) - 1:
            return False
        pair = lines.last_keys[lines.long[nth]], lines.keys[lines.long[nth + 1]]
        return self.together.always(pair[which], *pair)

    # -- learning ------------------------------------------------------------------------------

    def learn(self, seen: Seen) -> None:
        """Learn from a text that was sent; if nothing is new, only from one in `_LEARN_EVERY`."""
        lines, nths = seen.lines, [place.nth for place in seen.places]
        is_known = len(nths) > 2 and nths[-1] - nths[0] < len(nths)
        if is_known and all(piece.times >= _WELL_KNOWN for _, _, piece in seen.places):
            self._without_news += 1
            if self._without_news % _LEARN_EVERY:
                return
        keys = [lines.keys[i] for i in lines.long]
        self._learn_frame(keys)
        if seen.places:
            self._learn_closing(seen, seen.places[-1])
        pairs = [(lines.last_keys[i], key) for i, key in zip(lines.long, keys[1:], strict=False)]
        sides = [side for pair in pairs for side in (*pair, hash(pair))]
        self.together.note([*sides, keys[0], lines.last_keys[lines.long[-1]]])  # text's edges last
        # There is a break before each long line that is not joined to the previous one.
        documents = set(nths)
        starts = [0]
        for n, pair in enumerate(pairs, 1):
            least = 2 if n - 1 in documents or n in documents else 1
            if not self.together.mostly(*pair, least=least):
                starts.append(n)
        stops = [*starts[1:], len(lines.long)]
        for n, stop in enumerate(stops):
            piece = self._learn_piece(seen, documents, starts, n, stop)
            # A piece that always follows the same line, a heading, is a document together with it.
            if piece and piece.before and piece.times > 1 and n and starts[n] - 1 not in documents:
                self._learn_piece(seen, documents, starts, n - 1, stop)

    def _learn_piece(
        self, seen: Seen, documents: set[int], starts: list[int], n: int, stop: int
    ) -> _Piece | None:
        """Record the span from the break `n` to the long line `stop`; None if it is short."""
        lines, start = seen.lines, starts[n]
        before = lines.last_keys[lines.long[start - 1]] if start else _BEGIN
        after = lines.keys[lines.long[stop]] if stop < len(lines.long) else _END
        piece = self._piece(seen, lines.long[start], lines.long[stop - 1], before, after)
        if piece is not None:
            # The short lines show where this document begins or ends only next to another one.
            if n > 1 or (n and start - 1 in documents):
                self._learn_start(seen, piece, start, before)
            if stop < starts[-1] or stop in documents:
                self._learn_end(seen, piece, stop - 1, after)
        return piece

    def _learn_frame(self, keys: list[int]) -> None:
        """Record which of a text's long lines occur often in it."""
        frame = self.frame
        for key, count in Counter(keys).items():
            texts = frame.get(key, 0) + (1 if count >= _OFTEN else -1)
            if texts > 0:
                frame[key] = min(texts, 2 * _OFTEN_TEXTS)
            else:
                frame.pop(key, None)

    def _learn_closing(self, seen: Seen, last: Place) -> None:
        """Count the short lines that follow the last document, to find the scope's usual ones."""
        rest = hash(_masked(seen, last.line + 1, _after(seen.lines, last.nth)))
        usual, times = self._closings.get(seen.scope, (0, 0))
        if usual == rest or not times:
            self._closings[seen.scope] = rest, min(times + 1, _SURE_TIMES)
        else:
            self._closings[seen.scope] = usual, times - 1

    def _piece(self, seen: Seen, first: int, last: int, before: int, after: int) -> _Piece | None:
        """Record a span between two breaks and its neighbours; return None if it is short."""
        lines = seen.lines
        begin, end = lines.cores[first], lines.ends[last]
        if end - begin < LEAST_CHARS:
            return None
        whole = hash((seen.scope, seen.text[begin:end]))
        piece = self._pieces.get(whole)
        if piece is None:
            piece = _Piece(before, after)
        else:
            piece.times += 1
            if piece.before != before:
                piece.before = 0
            if piece.after != after:
                piece.after = 0
        self._pieces[whole] = piece
        if not piece.before and not piece.after:  # a document
            line_end = seen.text.find("\n", begin)
            keys = self._key(seen.scope, seen.text, lines.keys[first], line_end, end)
            known = self._documents.pop(keys, None)
            if known is None:
                known = Latest(MAX_ALIKE)
                self._begun.update(_beginnings(keys))
                self._alone.pop(keys[0], None)
                if self._begun[keys[:1]] == 1 < len(keys):
                    self._alone[keys[0]] = keys
            known[whole] = end - begin, lines.last_keys[last]
            self._documents[keys] = known
            if len(self._documents) > MAX_DOCUMENTS:
                evicted, _ = self._documents.popitem(last=False)
                self._alone.pop(evicted[0], None)
                for keys in _beginnings(evicted):
                    self._begun[keys] -= 1
                    if not self._begun[keys]:
                        del self._begun[keys]
        return piece

    @staticmethod
    def _learn_start(seen: Seen, piece: _Piece, nth: int, before: int) -> None:
        """Record what precedes a piece that follows a document."""
        lines, first = seen.lines, seen.lines.long[nth]
        head = tuple(lines.keys[_before(lines, nth) : first][-MOST_SHORT:])
        if piece.head != head:
            piece.head = head if piece.head is None else _common_end(piece.head, head)
        if piece.previous != before:
            piece.previous = before if piece.previous < 0 else 0
        above = [seen.labels.get(first - k, _NO_LABEL) for k in range(len(piece.head) + 1)]
        now = [(hash(number), hash(name)) for number, name in above]  # of an empty string: 0
        if piece.labels != now:
            piece.labels = [
                (number if number == known[0] else None, name if name == known[1] else None)
                for (number, name), known in zip(now, piece.labels or now, strict=False)
            ]

    @staticmethod
    def _learn_end(seen: Seen, piece: _Piece, nth: int, after: int) -> None:
        """Record what follows a piece that precedes a document."""
        lines = seen.lines
        tail = tuple(lines.keys[lines.long[nth] + 1 : _after(lines, nth)][:MOST_SHORT])
        if piece.tail != tail:
            piece.tail = tail if piece.tail is None else _common_start(piece.tail, tail)
        if piece.next != after:
            piece.next = after if piece.next < 0 else 0


def _beginnings(keys: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [keys[:count] for count in range(1, len(keys) + 1)]


def _parse_line(line: str) -> _Parsed:
    own = line.strip()
    start = len(line) - len(line.lstrip()) if own else 0
    label = _LABEL.match(own)
    number, skip = (label.end(1), label.end()) if label is not None else (0, 0)
    core = own[skip:]
    is_long = min(len(core), len(core.strip(_RULE))) >= LONG_LINE
    if not is_long:
        skip = number = number if number < len(own) else 0
    key = hash((own[skip:], is_long))
    return start, start + number, start + skip, start + len(own), key, is_long


_NO_LABEL = ("", "")


def _masked(seen: Seen, first: int, stop: int) -> tuple[str, ...]:
    """Return the text of some lines, minus numbers in short ones, which may count positions."""
    spans = zip(seen.lines.starts[first:stop], seen.lines.ends[first:stop], strict=True)
    lines = [seen.text[start:end] for start, end in spans]
    return tuple([_NUMBER.sub("#", line) if len(line) < LONG_LINE else line for line in lines])


def _before(lines: Lines, nth: int) -> int:
    """Return the first of the short lines directly before a long one."""
    return lines.long[nth - 1] + 1 if nth else 0


def _after(lines: Lines, nth: int) -> int:
    """Return where the short lines directly after a long one end."""
    return lines.long[nth + 1] if nth + 1 < len(lines.long) else len(lines.keys)


def _common_start(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return a[: sum(takewhile(bool, map(eq, a, b)))]


def _common_end(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return _common_start(a[::-1], b[::-1])[::-1]


class _Gap(NamedTuple):
    """The short lines between two documents, each of which claims those in its own tail or head.

    Args:
        first, stop: range of the lines.
        start, end: range of the lines that both documents claim, or neither.
        masked: text of these lines, without numbers.
        tail, head: number of lines that the previous and the next document claim.
        sure: whether the claims are certain, or there are no lines.
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


class _Bounds:
    """Decides where items begin and end, from the short lines around all documents of a text."""

    def __init__(self, seen: Seen, known: Recurrences) -> None:
        self._seen = seen
        self._known = known
        self._separator: tuple[str, ...] = ()  # short lines in all gaps, without numbers
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
        # If an item contains several documents, a note that counts items would mislead.
        is_counted = numbered or (None not in gaps and len(bounds) == len(pairs))
        items = tuple(
            [
                Item(a, b, a, b, None if is_counted else head(text[a:b])[:NAME_CHARS])
                for a, b in spans
            ]
        )
        return Block(items, items[-1].end, labels_stay=numbered, shape="recurring")

    def _alike(self, bounds: list[_Bound]) -> list[_Bound]:
        """Return the bounds whose gap, whitespace included, is the same in most; else all."""
        gaps = [self._seen.text[end:start] for end, start in bounds]
        if len(set(gaps)) < 2:
            return bounds
        gaps = [_NUMBER.sub("#", gap) for gap in gaps]
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
        tail = len(_common_start(own_tail, keys)) if own_tail else 0
        head = len(_common_end(own_head, keys)) if own_head else 0
        start, end = sorted((first + tail, stop - head))
        sure = not keys or (own_tail is not None and own_head is not None)
        masked = _masked(self._seen, start, end) if start < end else ()
        return _Gap(first, stop, start, end, masked, tail, head, sure)

    def _separate(self, gaps: Sequence[_Gap]) -> None:
        """Find the separator: in most gaps, the text that both documents claim, or neither."""
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
        """Return the bound in a gap that has no unknown long lines; None if uncertain."""
        lines, size = self._seen.lines, len(self._separator)
        if self._known.together.mostly(lines.last_keys[x.line], lines.keys[y.line]):
            return None
        start, end = gap.start, gap.end
        if not gap.sure or gap.masked != self._separator:
            found = [
                at
                for at in range(gap.first, gap.stop - size + 1)
                if size and _masked(self._seen, at, at + size) == self._separator
            ]
            if len(found) != 1:
                return None if gap.sure else self._one_sided(x, y, gap)
            start, end = found[0], found[0] + size
            if gap.sure and (start - gap.first > gap.tail or gap.stop - end > gap.head):
                return None
        begin = self._core(y, end)
        return None if begin is None else (lines.ends[start - 1], begin)

    def _one_sided(self, x: Place, y: Place, gap: _Gap) -> _Bound | None:
        """Return the bound in a gap if only one of the documents has known edges."""
        lines, size = self._seen.lines, len(self._separator)
        end = self._tail(x)
        if end is not None:
            begin = end + size
            if begin > gap.stop or _masked(self._seen, end, begin) != self._separator:
                return None
            start = self._core(y, begin)
        else:
            start = self._start(y)
            own = self._own(y.piece.head, sure=not y.piece.previous, behind=True)
            end = gap.stop - len(own or ()) - size
            if end < gap.first or _masked(self._seen, end, end + size) != self._separator:
                return None
        return None if start is None else (lines.ends[end - 1], start)

    def _core(self, place: Place, line: int) -> int | None:
        """Return where a document begins on its first line; None if uncertain."""
        core = self._seen.lines.cores[line]
        if line not in self._seen.labels:
            return core
        number, name = self._seen.labels[line]
        known, above = place.piece.labels, place.line - line
        if above >= len(known) or known[above][1] is None:
            return None
        own_number, own_name = known[above]
        if hash(name) != own_name:  # here the name belongs to the frame
            return core if not own_name else None
        core -= len(name)
        if self._numbered or not own_number:
            return core
        return core - len(number) if hash(number) == own_number else None

    def _start(self, place: Place) -> int | None:
        """Return the start of a document with an unknown previous neighbour; None if uncertain."""
        lines = self._seen.lines
        first = _before(lines, place.nth)
        own = self._own(place.piece.head, sure=not place.piece.previous, behind=True)
        if own is None:
            return self._core(place, first) if first == place.line else None
        at = place.line - len(own)
        if at and self._is_below_heading(place, at):
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
        if size and _masked(self._seen, max(0, at - size), at) == self._separator:
            return False
        before = [lines.keys[i] for i in lines.long[max(0, place.nth - _KEY_LINES) : place.nth]]
        return lines.keys[at - 1] in self._known.frame or any(
            self._known.is_heading(*before[start:]) for start in range(len(before))
        )

    def _behind_words(self, line: int, key: int) -> int | None:
        """Return the start of a short line that follows words of the frame up to a colon."""
        end = self._seen.lines.ends[line]
        rest = self._seen.text[self._seen.lines.starts[line] : end].partition(": ")[2]
        start, number, _, _, own, _ = _parse_line(rest)
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
        """Return the line after a document and its own short lines; None if uncertain."""
        lines = self._seen.lines
        first, stop = place.line + 1, _after(lines, place.nth)
        own = self._own(place.piece.tail, sure=not place.piece.next, behind=False)
        if own is None:
            return first if first == stop else None
        if first + len(own) > stop or tuple(lines.keys[first : first + len(own)]) != own:
            return None
        if place is self._seen.places[-1]:
            rest, size = _masked(self._seen, first + len(own), stop), len(self._separator)
            is_between = size and rest[:size] == self._separator
            if rest and not is_between and not self._known.is_closing(self._seen.scope, rest):
                return None  # the lines may be part of a document that differs only in them
        return first + len(own)

    def _around_unknown(self, x: Place, y: Place) -> list[_Bound]:
        """Return the certain bounds of unknown text between two documents, treated as one item."""
        lines, size = self._seen.lines, len(self._separator)
        bounds: list[_Bound] = []
        end = self._tail(x)
        if end is not None and _masked(self._seen, end, end + size) == self._separator:
            after = end + size
            begin = lines.starts[after]
            if self._numbered:
                begin += len(self._seen.labels.get(after, _NO_LABEL)[0])
            bounds.append((lines.ends[end - 1], begin))
        start = self._start(y)
        if start is not None:
            line = bisect_right(lines.starts, start) - 1
            if _masked(self._seen, max(0, line - size), line) == self._separator:
                bounds.append((lines.ends[line - size - 1], start))
        return [bound for bound in bounds if bound[0] < bound[1]]
