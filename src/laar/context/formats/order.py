"""Signs that the order of texts carries meaning: then they are no documents to move.

Only asked where the shape itself proves nothing (paragraphs, points, bullets, headings). It looks
at how texts begin, which is where they lean on each other: steps of a recipe, verses, mails, turns
of a talk, lines of a log, sentences of one story.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from laar.context.blocks import Item
from laar.context.formats import words

_TIME = re.compile(
    r"[\[(]?(?:\d{4}-\d{2}(?:-\d{2})?|\d{1,2}[:h]\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|"
    r"(?:mon|tue|wed|thu|fri|sat|sun)\w*,? |in \d{4}\b|\d{4}[:,] |day \d|week \d|"
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w* \d|\[?v?\d+\.\d+\.\d)",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"[\[(]?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|TRACE)\b")
_SPEAKER = re.compile(r"([A-Z][\w.' -]{0,24}):[ \t\n]")
_LISTED = re.compile(r"[ \t]*(?:[-*•+]|\(?\d{1,3}[.)]|#{1,6})[ \t]")
_COUNTED = re.compile(r"[\W_]{0,4}([A-Ca-c]|[IVXivx]{1,3})[.):][\s*_]")
_COUNTS = (("A", "B", "C"), ("I", "II", "III"))
_WORD = re.compile(r"[^\W\d_]+(?![\w'])")
_TOLD_BY = 3  # letters; the pattern has forms like "analy[sz]e"
_MAY_ORDER = frozenset(word[:_TOLD_BY] for word in re.findall(r"[a-z]+", words.IMPERATIVE.pattern))
_SELF = re.compile(r"\b(?:I|I'm|I've|we|We|we're|my|My|our|Our|us)\b")
_CODE = re.compile(
    r"[ \t]*(?:def |class |import |from \w+ import|return\b|function |const |let |var |if \(|"
    r"for \(|#include|public |private |package |SELECT |\$ |>>> |"
    r"[{}\[\]]|//|/\*|@\w+|</?\w|\|)"
)
_DECORATION = "=*_\"'“«([#>-•0123456789.) \t\r\n"

_RULED = "=-*# \t\r\n"
_TITLE = re.compile(r"(?:title|heading): ", re.IGNORECASE)

_READ = 400
"""Characters of each text, enough to recognise a poem or a person's own words."""

_VERSE_LINES = 3

_LEAST_WORDS = 4
"""Words in a text on average, below which it is a list of names."""

_STEPS = 0.34
"""Share of texts that may begin like a step before all are taken for steps."""


def carries_meaning(
    texts: Sequence[str],
    *,
    own: bool,
    remembered: bool = False,
    points: bool = False,
    parted: bool = False,
) -> bool:
    """Whether the texts seem to follow each other.

    Args:
        texts: the texts in order, without labels.
        own: no sign shows that they were retrieved, so they may be a user's own account.
        remembered: they are memories, which are short and may begin with a small letter.
        points: they are counted or listed.
        parted: something stands between them, so that they may begin anyhow.
    """
    heads = [text[:_READ] for text in texts]
    starts = [_untitled(head[:120].lstrip(_DECORATION)) for head in heads]
    lowered = [start[:40].lower() for start in starts]
    # Most differ at once; to compare whole texts, all of them are hashed.
    if not remembered and len(set(heads)) < len(heads) and len(set(texts)) < len(texts):
        return True
    if not remembered:
        if not parted and any(
            _leans(start, low) for start, low in zip(starts, lowered, strict=True)
        ):
            return True
        timed = sum(bool(_TIME.match(head.lstrip(_RULED))) for head in heads)
        if timed * 2 > len(texts) or any(_LEVEL.match(start) for start in starts):
            return True
        if sum(" " not in head.strip() and head.isascii() for head in heads) * 2 > len(texts):
            return True  # names, paths, links: a list, not texts
        few = sum(head.count(" ") + 1 for head in heads) < _LEAST_WORDS * len(texts)
        if few and all(map(str.isascii, texts)):
            return True
    spoken = [start for start in starts if ":" in start or "(" in start or "[" in start]
    if any(words.TURNS.match(start) for start in spoken) or _speakers(starts, spoken):
        return True
    steps = sum(map(_orders, starts))
    if steps > len(texts) * (_STEPS if points or remembered else 0.5):
        return True
    if own and any(_SELF.search(head) for head in heads):
        return True
    marks = [_COUNTED.match(head) for head in heads[:3]]
    if tuple(mark[1].upper() for mark in marks if mark is not None) in _COUNTS:
        return True
    if not parted and any(_LISTED.match(text) for text in texts) and not points:
        return True
    code = sum(_is_code(head[:200].partition("\n")[0]) for head in heads)
    wrapped = parted and not own  # lines of a page, as a reader of PDF files cuts them
    return code * 3 > len(texts) or (not wrapped and _verses(texts))


def _is_code(line: str) -> bool:
    return line.endswith((";", "{")) or _CODE.match(line) is not None


def follow_each_other(names: Sequence[str]) -> bool:
    """Whether names are of chapters, steps, days and the like."""
    return any(_TIME.match(name) or words.CONTINUES.match(name.lower()) for name in names)


_STAGE = re.compile(
    r"\W{0,20}(chapter|part|page|step|day|week|act|scene|version|draft|slide|stage|phase|lesson|"
    r"episode|volume|kapitel|teil|seite|schritt|chapitre|partie|étape|capítulo|parte|página|paso|"
    r"глава|часть|страница|第|§) ?#?(\d{1,4})(?!\d)",
    re.IGNORECASE,
)


def in_sequence(heads: Iterable[str]) -> bool:
    """Whether texts begin as chapters, pages or drafts that count up."""
    numbers: list[int] = []
    for head in heads:
        stage = _STAGE.match(head)
        if stage is None:
            return False  # nearly always the first
        numbers.append(int(stage[2]))
    return bool(numbers) and all(b == a + 1 for a, b in pairwise(numbers))


_SOURCE_FILE = re.compile(
    r"\.(?:py|pyi|tsx?|jsx?|mjs|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|scala|sh|sql|vue|lua|"
    r"dart|exs?|hs|clj)(?=[\s\"'<>:`])"
)


def source_files(text: str, items: Sequence[Item]) -> bool:
    """Whether items begin with names of files of code, by the first three."""
    heads = (text[item.start : item.start + _NAMED_BY] for item in items[:3])
    return all(_SOURCE_FILE.search(head) is not None for head in heads)


_NAMED_BY = 160

_NEXT_LABEL = re.compile(r"\n[ \t]*+(?:\*\*)?([^\W\d_]{2,20})[ \t](\d{1,4})\b")


def answered_in_turn(numbers: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether a line below each text has its number, too, or questions: examples, an exam."""
    first_two = zip(numbers[:2], texts[:2], strict=False)
    return all(
        any(
            match[2] == number or match[1].lower() in {"question", "questions", "frage", "fragen"}
            for match in _NEXT_LABEL.finditer(text)
        )
        for number, text in first_two
    )


def _untitled(start: str) -> str:
    match = _TITLE.match(start) if ":" in start[:9] else None
    return start if match is None else start[match.end() :]


def _leans(start: str, low: str) -> bool:
    """A small letter or a word that goes on with the text before."""
    if start[:1].islower():
        return True
    match = words.CONTINUES.match(low)
    return match is not None and match.end() > 1


def _orders(start: str) -> bool:
    """Whether a text begins like a step; most first words show at once that it does not."""
    first = _WORD.match(start)
    if first is not None and first.group()[:_TOLD_BY].lower() not in _MAY_ORDER:
        return False
    return words.IMPERATIVE.match(start) is not None


def _speakers(starts: Sequence[str], spoken: Sequence[str]) -> bool:
    """Names before colons that come back: a talk."""
    names = [match.group(1) for start in spoken if (match := _SPEAKER.match(start))]
    several = len(set(names))
    return len(names) * 2 > len(starts) and 1 < several < len(names)


def _verses(texts: Sequence[str]) -> bool:
    """Several short lines in each text, few of which end a sentence."""
    lines: list[str] = []
    for text in texts:
        own = [line for line in text[:_READ].split("\n") if line.strip()]
        if len(own) < _VERSE_LINES:
            return False
        lines += own
    short = sum(len(line) < 60 for line in lines)
    ended = sum(line.rstrip()[-1:] in ".!?:。！？" for line in lines)
    keyed = sum(":" in line[:30] for line in lines)
    return short > 0.8 * len(lines) and ended < 0.6 * len(lines) and keyed * 3 < len(lines)
