"""Documents in XML-like items: ``<document id="7">...</document>``, in a wrapper or bare.

Not an XML parser. It looks at a short list of tag names only, in one pass, and refuses whatever
could mean that a name is prose or that a document holds one: an item inside an item, an end without
a beginning, an attribute that does not parse or comes twice. The patterns are possessive or bounded
by what they exclude, so that the time is linear in the text whatever is in it.
"""

from __future__ import annotations

import re

from laar.context.blocks import MAX_MARKS, Block, Item, Marks, Refused, block_of
from laar.context.settings import Reason

__all__ = ["MARKS", "scan"]

_ITEMS = ("document", "context", "doc", "passage", "reference", "file")
_WRAPPERS = tuple(f"{name}s" for name in _ITEMS)

MARKS: Marks = (
    (b"<", re.compile(rb"<(?:doc|context|passage|reference|file)")),
    (b"\\", re.compile(rb"\\u003[cC]")),  # some JSON writers escape "<"
)

_TAG = re.compile(rf"<(/?)({'|'.join((*_WRAPPERS, *_ITEMS))})(?=[\s>/])")
_ATTRIBUTE = re.compile(r"""\s++([A-Za-z_][\w:.-]*+)\s*+=\s*+(?:"([^"<>]*+)"|'([^'<>]*+)')""")
_END = re.compile(r"\s*+>")
_INNER_ITEM = re.compile(rf"\s*+<(?:{'|'.join(_ITEMS)})[\s>]")


def scan(text: str, *, min_docs: int, max_docs: int, relabel: bool) -> list[Block]:
    """Finds all blocks of at least `min_docs` items.

    Raises:
        Refused: the markup is not plainly a list of documents, or a block is too long.
    """
    return _Scan(text, min_docs, max_docs, relabel).run()


class _Scan:
    def __init__(self, text: str, min_docs: int, max_docs: int, relabel: bool) -> None:
        self.text = text
        self.min_docs = min_docs
        self.max_docs = max_docs
        self.relabel = relabel
        self.blocks: list[Block] = []
        self.wrapper: str | None = None
        # The run of equal items in progress.
        self.name: str | None = None
        self.items: list[Item] = []
        self.names: list[dict[str, str]] = []

    def run(self) -> list[Block]:
        """One pass over the tags that are known."""
        opened: tuple[int, int] | None = None
        for seen, match in enumerate(_TAG.finditer(self.text)):
            if seen > MAX_MARKS * self.max_docs:
                raise Refused(Reason.TOO_MANY)
            closing, name = match.groups()
            if not closing:
                if opened is not None:
                    raise Refused(Reason.NESTED)
                opened = self._open(name, match)
            elif opened is not None:
                if name != self.name:
                    raise Refused(Reason.UNBALANCED)
                end = self._end(match.end())
                self.items.append(Item(opened[0], end, opened[1], match.start()))
                opened = None
                if len(self.items) > self.max_docs:
                    raise Refused(Reason.TOO_MANY)
            elif name == self.wrapper:
                self._finish(self._end(match.end()))
                self.wrapper = None
            else:
                raise Refused(Reason.UNBALANCED)
        if opened is not None or self.wrapper is not None:
            raise Refused(Reason.UNBALANCED)
        self._finish()
        return self.blocks

    def _open(self, name: str, match: re.Match[str]) -> tuple[int, int] | None:
        """An opening tag; the starts of the item and of its text, or None for a wrapper."""
        attributes, inside = self._attributes(match.end())
        if name in _WRAPPERS or (name == "context" and _INNER_ITEM.match(self.text, inside)):
            self._finish()
            if self.wrapper is not None:
                raise Refused(Reason.NESTED)
            self.wrapper = name
            return None
        if name != self.name:
            self._finish()
            self.name = name
        self.names.append(attributes)
        return match.start(), inside

    def _attributes(self, at: int) -> tuple[dict[str, str], int]:
        found: dict[str, str] = {}
        while match := _ATTRIBUTE.match(self.text, at):
            name, double, single = match.groups()
            if name in found:
                raise Refused(Reason.DUPLICATE_ATTRIBUTE)
            found[name] = double if double is not None else single
            at = match.end()
        return found, self._end(at)

    def _end(self, at: int) -> int:
        if self.text.startswith(">", at):
            return at + 1
        match = _END.match(self.text, at)
        if match is None:
            raise Refused(Reason.MALFORMED_TAG)
        return match.end()

    def _finish(self, end: int | None = None) -> None:
        """Ends the run of items; a note about them goes behind the wrapper, if there is one."""
        if len(self.items) >= self.min_docs:
            after = self.items[-1].end if end is None else end
            self.blocks.append(
                block_of(self.text, self.items, after, names=self.names, relabel=self.relabel)
            )
        self.name, self.items, self.names = None, [], []
