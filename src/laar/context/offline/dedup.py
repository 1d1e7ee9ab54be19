"""De-duplication by document id inside one conversation (ContextPilot, algorithm 3).

The library form: the caller keeps `seen` and answers for the earlier text still being in the
prompt. The server's hook does not use this state. It looks for the earlier text in the body itself,
because a client that truncates its history would make the pointer dangle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Deduplicated", "deduplicate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated:
    """One turn after de-duplication.

    Args:
        docs: the turn's documents in place, with whether each is repeated from an earlier turn and
            is to be replaced by a location note.
        seen: every document of the conversation so far; pass it with the next turn.
    """

    docs: tuple[tuple[int, bool], ...]
    seen: frozenset[int]

    @property
    def new(self) -> list[int]:
        """The documents to send in full."""
        return [doc for doc, repeated in self.docs if not repeated]

    @property
    def repeated(self) -> list[int]:
        """The documents to send as a note."""
        return [doc for doc, repeated in self.docs if repeated]


def deduplicate(docs: Sequence[int], seen: frozenset[int] = frozenset()) -> Deduplicated:
    """Marks documents sent by earlier turns. Turns are registered whole: [9, 9] stays twice new."""
    return Deduplicated(docs=tuple((doc, doc in seen) for doc in docs), seen=seen | set(docs))
