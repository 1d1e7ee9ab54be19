"""Documents in XML-like items: ``<document id="7">...</document>``, in a wrapper or bare.

This is not an XML parser: one pass looks for a short list of tag names. It refuses a text if
anything suggests that a tag is prose or part of a document: nested items, an end tag without a
start tag, an invalid or duplicate attribute. An unclosed tag within a sentence ("when the <source>
tag has an id") is only a mention. The patterns are possessive, or bounded by the characters that
they exclude, so the time is linear in the text's length.
"""

from __future__ import annotations

import re

from laar.context.blocks import MAX_DOCS, MAX_MARKS, MIN_DOCS, Block, SkippedText, Span, block_of
from laar.context.settings import Reason

_ITEMS = (
    "document", "context", "doc", "passage", "reference", "file", "source", "chunk", "snippet",
    "excerpt", "memory", "search_result",
)  # fmt: skip
_WRAPPERS = dict.fromkeys((*(f"{name}s" for name in _ITEMS if name != "memory"), "memories"))

_NAME = r"[A-Za-z_][\w:.-]*+"
_VALUE = r"""(?:"([^"<>]*+)"|'([^'<>]*+)'|([\w.:-]++))"""
_ATTRIBUTE = re.compile(rf"\s++({_NAME})\s*+=\s*+{_VALUE}")
# The attributes are None if what follows the name does not complete a tag.
_TAG = re.compile(
    rf"<(/?)({'|'.join((*_WRAPPERS, *_ITEMS))})"
    rf"""(?:((?:\s++{_NAME}\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[\w.:-]++))*+)\s*+>|(?=[\s>/]))"""
)
_INNER_ITEM = re.compile(rf"\s*+<(?:{'|'.join(_ITEMS)})[\s>]")

_QUOTED = 8
"""Characters before a tag in which to look for a word or comma, skipping quotes and brackets."""

_COMMAS = frozenset(",;.")
_BREAKS = frozenset("\n>")
"""A tag directly after one of these characters is not a mention in a sentence."""


def scan(text: str) -> list[Block]:
    """Find all blocks of at least `MIN_DOCS` items.

    Raises:
        Refused: the markup is not clearly a list of documents, or a block has more than `MAX_DOCS`.
    """
    return _Scan(text).run() if "<" in text else []


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.blocks: list[Block] = []
        self.wrapper: str | None = None
        self.found: dict[str, int] = {}
        # The current run of items with the same tag.
        self.name: str | None = None
        self.spans: list[Span] = []
        self.names: list[dict[str, str]] = []

    def run(self) -> list[Block]:
        """Return the blocks, found in one pass over known tags."""
        opened: tuple[int, int] | None = None
        for seen, match in enumerate(_TAG.finditer(self.text)):
            if seen > MAX_MARKS * MAX_DOCS:
                raise SkippedText(Reason.TOO_MANY)
            closing, name, attributes = match.groups()
            if opened is None:
                if closing:
                    self._end(name, attributes, match.end())
                elif not self._is_mention(match):
                    opened = self._open(name, attributes, match)
            elif name == self.name or name == self.wrapper:  # other tags are part of a document
                if not closing:
                    raise SkippedText(Reason.NESTED)
                if name != self.name:
                    raise SkippedText(Reason.UNBALANCED)
                if attributes != "":
                    raise SkippedText(Reason.MALFORMED_TAG)
                self._close(opened, match)
                opened = None
        if opened is not None or self.wrapper is not None:
            raise SkippedText(Reason.UNBALANCED)
        self._finish()
        return self.blocks

    def _is_mention(self, match: re.Match[str]) -> bool:
        """Return whether an opening tag is within a sentence and not closed before the next one."""
        start = match.start()
        if self.text[start - 1 : start] in _BREAKS:
            return False  # the usual case
        before = self.text[max(0, start - _QUOTED) : start].rstrip("\"'`([ \t")[-1:]
        if not before.isalpha() and before not in _COMMAS:
            return False
        again = self._next(rf"<{match[2]}[\s>]", match.end())
        return self._next(f"</{match[2]}", match.end()) >= again

    def _next(self, pattern: str, at: int) -> int:
        """Return where a pattern occurs next, or the text's end; no part is searched twice."""
        if self.found.get(pattern, -1) < at:
            match = re.compile(pattern).search(self.text, at)
            self.found[pattern] = len(self.text) if match is None else match.start()
        return self.found[pattern]

    def _end(self, name: str, attributes: str | None, end: int) -> None:
        """Handle the end tag of a wrapper."""
        if name != self.wrapper:
            raise SkippedText(Reason.UNBALANCED)
        if attributes != "":
            raise SkippedText(Reason.MALFORMED_TAG)
        self._finish(end)
        self.wrapper = None

    def _close(self, opened: tuple[int, int], match: re.Match[str]) -> None:
        """Handle the end tag of an item; an empty item followed by words is only a mention."""
        start, inside = opened
        if not self.spans and not self.text[inside : match.start()].strip():
            behind = self.text[match.end() : match.end() + 16].lstrip()
            if behind and not behind.startswith("<"):
                self.names.pop()
                return
        self.spans.append((start, match.end(), inside, match.start()))
        if len(self.spans) > MAX_DOCS:
            raise SkippedText(Reason.TOO_MANY)

    def _open(
        self, name: str, attributes: str | None, match: re.Match[str]
    ) -> tuple[int, int] | None:
        """Return where an opening tag's item and the item's text start; None for a wrapper."""
        if attributes is None:
            raise SkippedText(Reason.MALFORMED_TAG)
        inside = match.end()
        if name in _WRAPPERS or (name == "context" and _INNER_ITEM.match(self.text, inside)):
            _named(attributes)
            self._finish()
            if self.wrapper is not None:
                raise SkippedText(Reason.NESTED)
            self.wrapper = name
            return None
        if name != self.name:
            self._finish()
            self.name = name
        self.names.append(_named(attributes))
        return match.start(), inside

    def _finish(self, end: int | None = None) -> None:
        """End the run of items; the note about them goes after the wrapper, if any."""
        if len(self.spans) >= MIN_DOCS:
            after = self.spans[-1][1] if end is None else end
            block = block_of(self.text, self.spans, after, names=self.names, shape="xml")
            self.blocks.append(block)
        self.name, self.spans, self.names = None, [], []


def _named(attributes: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(attributes)
    named = {name: double or single or bare for name, double, single, bare in found}
    if len(named) < len(found):
        raise SkippedText(Reason.DUPLICATE_ATTRIBUTE)
    return named
