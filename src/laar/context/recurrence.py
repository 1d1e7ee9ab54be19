"""Learn documents by recurrence: a span that recurs between different neighbors is a document.

Nothing is assumed about format, words or language. A text is a sequence of lines; a *long* line is
recognized by its text alone. Two adjacent lines are joined as long as either is mostly seen next to
the other, and separated otherwise. A span between two breaks is a document once it has recurred
with a different line before it and a different one after it; from then on it is found anywhere.
Overlaps of chunks, and paragraphs or headings shared by many chunks, do not qualify: a part that
always has the same neighbor is not a separate document. A span that always follows the same line,
such as its file's name, forms one document with that line.

    learn:  lines -> breaks -> pieces -> (different neighbors on both sides) -> documents
    find:   lines -> documents, longest first -> owners of the short lines between them

Short lines (labels, rules, fences) identify nothing; `laar.context.edges` assigns them. The *frame*
is the text of the prompt around the documents.

Only hashes are kept, salted per process, in tables of fixed size. Each hash includes the scope
(tenant, route and model).
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable

import numpy as np

from laar.context.blocks import Block
from laar.context.edges import Edges
from laar.context.lines import (
    KEY_LINES,
    MOST_SHORT,
    NO_LABEL,
    Lines,
    ParsedLine,
    Piece,
    Place,
    Seen,
    common_end,
    common_start,
    parse_line,
)
from laar.latest import Latest

MAX_LINES = 4_000
"""Maximum number of lines examined per text (about 4 ms)."""

LEAST_CHARS = 40
"""Minimum number of characters in a document; shorter pieces are labels and headings."""

MAX_DOCUMENTS = 30_000
MAX_PIECES = 30_000
"""Maximum number of documents and candidate pieces (0.8 KB each); LRU eviction."""

MAX_ALIKE = 12
"""Maximum number of documents that share their first `KEY_LINES`; LRU eviction."""

_COMPARED = 8
"""Maximum number of characters compared with documents that begin alike, as a multiple of the
text's length. Usually each document is compared once; only hostile texts reach the limit."""

_LONGEST_HEADING = 120
"""Maximum length of a single line that may be a heading or a source instead of a document."""

_OFTEN = 3
_OFTEN_TEXTS = 2
"""A line belongs to the frame, not to a document, if texts in which it occurs at least `_OFTEN`
times outnumber other texts by `_OFTEN_TEXTS`."""

_WELL_KNOWN, _LEARN_EVERY = 16, 8
"""Once each document of a text has been learned from `_WELL_KNOWN` texts, laar learns from only one
such text in `_LEARN_EVERY`, to keep the documents from being evicted and to notice wrong ones."""

MAX_PARSED = 30_000
"""Maximum number of parsed lines in the cache (0.2 KB each); beyond it, the cache is cleared."""

MAX_FRAME = 4_000
"""Maximum number of lines counted to recognize the frame, and of scopes for which the usual lines
after the last document are known."""

_MOSTLY = 0.5
"""Two lines form one piece if one is next to the other in more than this share of its cases."""

_SURE_TIMES = 8
"""Cap on the count of a scope's usual closing; each text that closes differently lowers it by 1."""

_SLOT_BITS = 21  # 4 MB; 500 chunks of 1 KB collide in 1 % of their lines
_MASK = (1 << _SLOT_BITS) - 1
_FULL = (1 << 16) - 1
_BEGIN, _END = 1, 2  # the edges of a text, as neighbors


class _Together:
    """Counts of adjacent pairs of lines, and of the neighbors of each line.

    The size is fixed, so collisions make some counts too high.
    """

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 << _SLOT_BITS))

    def note(self, keys: Iterable[int]) -> None:
        """Count pairs and each line's neighbors; halve all counts if one reaches its maximum."""
        counts = self._counts
        for key in keys:
            counts[key & _MASK] += 1
            if counts[key & _MASK] == _FULL:
                np.frombuffer(counts, np.uint16)[:] >>= 1

    def mostly(self, a: int, b: int, *, least: int = 2) -> bool:
        """Return whether either line is mostly next to the other, and at least `least` times."""
        counts = self._counts
        pair = counts[hash((a, b)) & _MASK]
        return pair >= least and 2 * pair > _MOSTLY * min(counts[a & _MASK], counts[b & _MASK])


class Recurrences:
    """The known documents of all scopes, and pieces that may become documents."""

    def __init__(self) -> None:
        self.together = _Together()
        self.frame: Latest[int, int] = Latest(MAX_FRAME)
        """Lines that often recur within a text: how many more such texts there were than others."""
        self._parsed: dict[int, ParsedLine] = {}
        self._pieces: Latest[int, Piece] = Latest(MAX_PIECES)
        self._closings: Latest[int, tuple[int, int]] = Latest(MAX_FRAME)  # by scope, with a count
        self._without_news = 0
        # By the keys of the first long lines: documents by hash, with length and key of last line.
        self._documents: OrderedDict[tuple[int, ...], Latest[int, tuple[int, int]]] = OrderedDict()
        self._begun: Counter[tuple[int, ...]] = Counter()  # documents by the start of these keys

    def __len__(self) -> int:
        """Return the number of pieces held."""
        return len(self._pieces)

    def is_heading(self, *keys: int) -> bool:
        """Return whether these long lines precede several documents, as a file's name does."""
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
        return Edges(seen, self).block(), seen

    def _read(self, scope: int, text: str) -> Seen:
        """Return the lines of a text, with each known document as one line, and their labels."""
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
                        # Words of the frame that precede the first document become a separate line.
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
        return seen

    def _lead(self, scope: int, line: str) -> int:
        """Return the length of words up to a colon before a known document; 0 if there are none."""
        rest = line.partition(": ")[2]
        parsed = self._parsed.get(hash(rest)) or self._parse(rest)
        return len(line) - len(rest) if (hash((scope, parsed[4])),) in self._begun else 0

    def _known(self, seen: Seen, begin: int, key: int, stop: int) -> tuple[int, int, Piece] | None:
        """Return the longest known document at `begin`, if any: end, last line's key and piece."""
        scope, text = seen.scope, seen.text
        keys = self._key(scope, text, key, stop, len(text))
        for count in range(len(keys), 0, -1):
            alike = self._documents.get(keys[:count])
            if not alike or (count < KEY_LINES and self.is_heading(*keys[:count])):
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
            if len(keys) == KEY_LINES or not 0 <= stop < end - 1:
                break
            at, stop = stop + 1, text.find("\n", stop + 1)
            line = text[at : stop if stop >= 0 else len(text)]
            parsed = self._parsed.get(hash(line)) or self._parse(line)
            if parsed[5]:
                keys.append(hash((scope, parsed[4])))
        return tuple(keys)

    def _parse(self, line: str) -> ParsedLine:
        """Parse a line; results are cached because most lines recur."""
        if len(self._parsed) >= MAX_PARSED:
            self._parsed.clear()
        return self._parsed.setdefault(hash(line), parse_line(line))

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
    ) -> Piece | None:
        """Record the span from the break `n` to the long line `stop`; None if it is short."""
        lines, start = seen.lines, starts[n]
        before = lines.last_keys[lines.long[start - 1]] if start else _BEGIN
        after = lines.keys[lines.long[stop]] if stop < len(lines.long) else _END
        piece = self._piece(seen, lines.long[start], lines.long[stop - 1], before, after)
        if piece is not None:
            # Only next to another document do short lines show where this one begins or ends.
            if n > 1 or (n and start - 1 in documents):
                self._learn_start(seen, piece, start, before)
            if stop < starts[-1] or stop in documents:
                self._learn_end(seen, piece, stop - 1, after)
        return piece

    def _learn_frame(self, keys: list[int]) -> None:
        """Record which of a text's long lines occur in it often."""
        frame = self.frame
        for key, count in Counter(keys).items():
            texts = frame.get(key, 0) + (1 if count >= _OFTEN else -1)
            if texts > 0:
                frame[key] = min(texts, 2 * _OFTEN_TEXTS)
            else:
                frame.pop(key, None)

    def _learn_closing(self, seen: Seen, last: Place) -> None:
        """Count the short lines that follow the last document, to find the scope's usual ones."""
        rest = hash(seen.without_numbers(last.line + 1, seen.lines.after(last.nth)))
        usual, times = self._closings.get(seen.scope, (0, 0))
        if usual == rest or not times:
            self._closings[seen.scope] = rest, min(times + 1, _SURE_TIMES)
        else:
            self._closings[seen.scope] = usual, times - 1

    def _piece(self, seen: Seen, first: int, last: int, before: int, after: int) -> Piece | None:
        """Record a span between two breaks and its neighbors; return None if it is short."""
        lines = seen.lines
        begin, end = lines.cores[first], lines.ends[last]
        if end - begin < LEAST_CHARS:
            return None
        whole = hash((seen.scope, seen.text[begin:end]))
        piece = self._pieces.get(whole)
        if piece is None:
            piece = Piece(before, after)
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
            known[whole] = end - begin, lines.last_keys[last]
            self._documents[keys] = known
            if len(self._documents) > MAX_DOCUMENTS:
                evicted, _ = self._documents.popitem(last=False)
                for keys in _beginnings(evicted):
                    self._begun[keys] -= 1
                    if not self._begun[keys]:
                        del self._begun[keys]
        return piece

    @staticmethod
    def _learn_start(seen: Seen, piece: Piece, nth: int, before: int) -> None:
        """Record what precedes a piece that follows a document."""
        lines, first = seen.lines, seen.lines.long[nth]
        head = tuple(lines.keys[lines.before(nth) : first][-MOST_SHORT:])
        if piece.head != head:
            piece.head = head if piece.head is None else common_end(piece.head, head)
        if piece.previous != before:
            piece.previous = before if piece.previous < 0 else 0
        above = [seen.labels.get(first - k, NO_LABEL) for k in range(len(piece.head) + 1)]
        now = [(hash(number), hash(name)) for number, name in above]  # 0 for an empty string
        if piece.labels != now:
            piece.labels = [
                (number if number == known[0] else None, name if name == known[1] else None)
                for (number, name), known in zip(now, piece.labels or now, strict=False)
            ]

    @staticmethod
    def _learn_end(seen: Seen, piece: Piece, nth: int, after: int) -> None:
        """Record what follows a piece that precedes a document."""
        lines = seen.lines
        tail = tuple(lines.keys[lines.long[nth] + 1 : lines.after(nth)][:MOST_SHORT])
        if piece.tail != tail:
            piece.tail = tail if piece.tail is None else common_start(piece.tail, tail)
        if piece.next != after:
            piece.next = after if piece.next < 0 else 0


def _beginnings(keys: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [keys[:count] for count in range(1, len(keys) + 1)]
