"""The notes that tell the model what the hook changed, in the words of ContextPilot (5.3 and 6).

An order note follows the moved documents; before them, it would end the shared prefix. A duplicate
note replaces a document's text, and only refers to text earlier in the same body. The notes are
part of prompts, so changing their wording invalidates caches.
"""

from __future__ import annotations

from collections.abc import Sequence

HEAD_CHARS = 60
"""Characters of the removed text quoted in a note: enough to distinguish documents, but fewer than
the text has."""

_INVALID = dict.fromkeys([*range(32), *map(ord, '<>`"\\')])

_ORDER = "in the following priority order"

WORTH_A_NOTE = 256
"""Minimum length of a repeated document that a note replaces; a note takes about 100 bytes."""


def order_note(labels: Sequence[str | None], order: Sequence[int]) -> str:
    """Return the note on the order of relevance after documents were moved.

    Args:
        labels: labels of the documents as sent; if any is missing, positions from 1 are used.
        order: positions in `labels`, most relevant first.
    """
    if any(label is None for label in labels):  # unmoved documents may precede these
        names = " > ".join(str(place + 1) for place in order)
        which = f"last {len(order)} documents above, counted from 1,"
        return f"(Please read the {which} {_ORDER}: {names}.)"
    names = " > ".join(f"[{labels[place]}]" for place in order)
    return f"(Please read the documents above {_ORDER}: {names}.)"


def number_note(numbers: Sequence[str | None], ids: Sequence[str]) -> str:
    """Return the order note that maps numbers, which a question may mention, to ids."""
    names = " > ".join(f"{number} = [{own}]" for number, own in zip(numbers, ids, strict=True))
    return f"(Please read the documents above {_ORDER}, as the user counts them: {names}.)"


def duplicate_note(text: str) -> str:
    """Return the note that replaces a document whose full text occurs earlier."""
    return f"(Please refer to the earlier document that begins: {head(text)})"


def head(text: str) -> str:
    """Return a text's beginning on one line, without characters invalid in JSON strings or tags."""
    return " ".join(text[: HEAD_CHARS * 2].split())[:HEAD_CHARS].translate(_INVALID).strip()
