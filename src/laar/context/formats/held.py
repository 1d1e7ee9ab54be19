"""Documents that must stay where they are, since the prompt uses their order or their numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice, repeat

from laar.context.blocks import Block
from laar.context.formats import uses
from laar.context.formats.order import in_sequence
from laar.context.formats.seek import beginnings
from laar.context.formats.view import Surroundings
from laar.context.settings import ContextSettings, Reason

_READ = 4000
"""Characters that are read before and after documents; citations and orders are named there."""

_HEAD = 80
"""Characters of each document that may show a place in a sequence."""

_MANY = 1000
"""Places of a word from which on one search through all texts is faster than a look at each."""

_DIGIT = re.compile(r"\d")
_NOUN = re.compile(r"[^\W\d_]{3,}")


def hold(
    text: str, blocks: list[Block], settings: ContextSettings, around: Surroundings
) -> list[Block]:
    """The blocks, held where the prompt may use their order or the numbers of their places."""
    if settings.relabel is True or all(block.held is not None for block in blocks):
        return blocks
    first, last = blocks[0].begin, blocks[-1].end
    near = (text[max(0, first - _READ) : first], text[last : last + _READ], *around.asked)
    said = (*near, *around.later, around.answer)
    all_used = any(map(uses.ORDERED.are_in, near)) or any(map(uses.PLACES.are_in, said))

    def is_used(block: Block) -> bool:
        heads = (text[item.text_start : item.text_start + _HEAD] for item in block.items)
        if all_used or in_sequence(heads):
            return True
        speaks_of_numbers = any(map(uses.NUMBERED.are_in, said))
        if not block.labels_stay:
            return speaks_of_numbers and not _have_numbers(block)
        return (
            speaks_of_numbers
            or settings.relabel is False
            or any(map(uses.CITES.are_in, said))
            or uses.COUNTED.search(around.answer) is not None
            or _speak_of_each_other(text, block)
        )

    return [
        replace(block, held=Reason.POSITIONAL_LABELS)
        if block.held is None and is_used(block)
        else block
        for block in blocks
    ]


def _have_numbers(block: Block) -> bool:
    """Whether the documents' own names hold numbers, by which a prompt may speak of them."""
    return all(item.label and _DIGIT.search(item.label) for item in block.items)


def _speak_of_each_other(text: str, block: Block) -> bool:
    """Whether a document names another by its label, as in "see Document 3"."""
    noun = _NOUN.search(text[block.begin : block.items[0].start].lower())
    if noun is None:
        return False
    named = rf"{noun.group()}(?<![</\w]{noun.group()})s?[ #]{{0,2}}\[?\d{{1,3}}\b"
    texts = "\n".join([text[a:b] for a, b, *_ in block.items])
    if texts.isascii():
        anyhow = re.compile(named, re.IGNORECASE).match
        places = list(islice(beginnings(texts, noun.group()), _MANY))
        if len(places) < _MANY and not any(map(anyhow, repeat(texts), places)):
            return False  # nearly always
    first = block.items[0].start
    small, spoken = text[first : block.end].lower(), re.compile(named)
    return any(spoken.search(small, a - first, b - first) for a, b, *_ in block.items)
