"""Documents with something between them: rules, blank lines, line ends; only in a place for them.

These are the shapes with the least evidence. A paragraph may be a document or a part of one, so
they are cut only where the place is plainly for documents and no sign shows that the texts follow
each other, and then they are moved with care (`Block.careful`): along an order that was sent
before, and never by popularity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from laar.context.blocks import Block, Item
from laar.context.formats import cues, words
from laar.context.formats.ends import trimmed
from laar.context.formats.order import carries_meaning
from laar.context.formats.places import Place
from laar.context.formats.shapes import CUTS, Cut
from laar.context.formats.view import View

_KEY = re.compile(r"[ \t]*+[A-Za-z][\w -]{0,30}: ")
_KEYED = re.compile(rf"{_KEY.pattern}[^\n]{{0,200}}(?:\n{_KEY.pattern}[^\n]{{0,200}})*+\Z")
_SENTENCE_END = (
    ".",
    "!",
    "?",
    "…",
    "。",
    "！",
    "？",
    '"',
    "”",
    "'",
    ")",
    "]",
    "»",
    ":",
    ";",
    "।",
    "؟",
    "۔",
)
_LEAST_CHARS = 12
_LONGEST_KEYS = 2000
_READ = 2000  # of either end of a place


def in_place(view: View, place: Place, families: Sequence[str], most: int) -> Block | None:
    """The place cut into documents."""
    if place.kind == "text" and not place.looked_up:
        return None
    for cut in CUTS:
        enough = place.points >= cut.needs or (place.memories and cut.name == "lines")
        if cut.family not in families or not enough:
            continue
        block = _block(view, place, cut, most)
        if block is not None:
            return block
    return None


def _block(view: View, place: Place, cut: Cut, most: int) -> Block | None:
    text = view.text
    if cut.name == "lines" and text.count("\n", place.start, place.end) >= most:
        return None
    spans = _spans(view, place, cut)
    if cut.name == "paragraphs":
        spans = _with_keys(text, spans)
    if not 2 <= len(spans) <= most:
        return None
    if any(words.TURNS.match(text, a, b) for a, b in spans):
        return None
    texts = [_unnamed(text[a:b]) for a, b in spans]
    if place.kind == "text" and _speaks(texts[0]):
        return None
    if cut.name == "lines" and not place.memories and not all(map(_whole, texts)):
        return None
    short = sum(len(own) < _LEAST_CHARS for own in texts)
    if short and not place.memories:
        return None
    own = text[place.start : place.end]
    parts = (own,) if len(own) <= 2 * _READ else (own[:_READ], own[-_READ:])
    if any(cues.has_question(part) for part in parts):
        return None  # examples with their answers, or a place that holds more than documents
    if carries_meaning(
        texts,
        own=not place.looked_up,
        remembered=place.memories,
        parted=cut.name == "separators",
    ):
        return None
    items = tuple(Item(a, b, a, b) for a, b in spans)
    sure = place.closed
    kept = items if sure else items[:-1]
    return Block(
        kept,
        kept[-1].end if kept else place.end,
        shape=cut.name,
        pinned=len(items) - len(kept),
        careful=not place.memories,
    )


def _spans(view: View, place: Place, cut: Cut) -> list[tuple[int, int]]:
    text = view.text
    spans: list[tuple[int, int]] = []
    at = place.start
    sign: str | None = None
    for match in view.own_ends.matches(cut.between, place.start, place.end):
        if cut.name == "separators":
            own = match.group().strip()
            if sign is not None and own != sign:
                continue
            sign = own
        spans.append((at, match.start()))
        at = match.end()
    spans.append((at, place.end))
    whole = [
        trimmed(text, a, b) if cut.name != "separators" else _bare(text, a, b) for a, b in spans
    ]
    return [(a, b) for a, b in whole if a < b]


def _bare(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _with_keys(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Paragraphs with those before them that only name them (``file: a.md``), if all do so."""
    keyed = [bool(_KEYED.match(text, a, b)) for a, b in spans]
    if not keyed or not keyed[0] or not any(not key for key in keyed):
        return spans
    joined: list[tuple[int, int]] = []
    for (a, b), key in zip(spans, keyed, strict=True):
        if key:
            joined.append((a, b))
        else:
            joined[-1] = (joined[-1][0], b)
    return joined


def _speaks(text: str) -> bool:
    """Whether a text ends with a question or an announcement, rather than being a document."""
    return text.rstrip("-=*_ \t\r\n").endswith(("?", "？", ":", "："))


def _unnamed(text: str) -> str:
    """A document without the paragraph that only names it."""
    if _KEY.match(text) is None:
        return text  # most documents
    head, blank, _ = text[:_LONGEST_KEYS].partition("\n\n")
    return text[len(head) + 2 :] if blank and _KEYED.match(head) else text


def _whole(line: str) -> bool:
    """Whether a line reads as a text of its own rather than as a piece of a wrapped one."""
    end = line.rstrip()
    least = 2 * _LEAST_CHARS if end.isascii() else _LEAST_CHARS  # other scripts are denser
    return len(end) >= least and end.endswith(_SENTENCE_END) and not line[:1].islower()
