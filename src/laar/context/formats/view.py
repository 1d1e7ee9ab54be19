"""One text of a prompt as the recognisers see it, and the rest of the prompt around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from laar.context.formats import cues, words
from laar.context.formats.seek import LineEnds

_HEAD = 6_000
"""Signs at the beginning of a text in which a heading may share its line with a document, and in
which the first of some seldom records must stand."""

LONGEST_TAIL = 6_000
"""Signs that follow the documents, question and all, if their end is to be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The rest of a prompt, as evidence for or against documents in one of its texts.

    Args:
        said: other texts of the prompt, cut to the parts that are worth reading.
        asked: texts that may give the documents' order or numbers a meaning.
        later: the same, of later turns than theirs.
        answer: JSON that gives the answer its form, such as a schema; empty if there is none.
        by_tool: the text is the result of a tool that looks things up.
        asked_apart: a question stands in another text.
        parts: the text is the JSON of a message's content.
    """

    said: str = ""
    asked: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    answer: str = ""
    by_tool: bool = False
    asked_apart: bool = False
    parts: bool = False


NO_SURROUNDINGS = Surroundings()


@dataclass(slots=True)
class View:
    """A text with a line end before it, so that every line begins behind one.

    Args:
        text: the text, decoded.
        own_ends: its line ends.
        around: the rest of the prompt.
    """

    text: str
    own_ends: LineEnds
    around: Surroundings = NO_SURROUNDINGS
    lined: str = field(init=False)
    _added: int = field(init=False, default=0)
    _ends: LineEnds | None = field(init=False, default=None)
    _heads: list[int] | None = field(init=False, default=None)
    _cues: dict[int, tuple[list[tuple[int, bool]], list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        # Text after "Context: " on its line begins like a line, too; no place changes.
        head = f"\n{self.text[:_HEAD]}"
        names = head.count("\nDocument: ") > 1  # each names a document
        if ":" in head and not names and words.INLINE.search(head) is not None:
            head, self._added = words.INLINE.subn(r"\n\1\n", head)
            self.lined = head + self.text[_HEAD:]
        else:
            self.lined = f"\n{self.text}"
        self._cues = {}

    @property
    def ends(self) -> LineEnds:
        """The line ends of `lined`."""
        if self._ends is None:
            self._ends = LineEnds(self.lined, like=self.own_ends, more=self._added + 1)
        return self._ends

    @property
    def heads(self) -> list[int]:
        """Ends of the lines before those that may begin with a label that needs no place."""
        if self._heads is None:
            head = self.lined[:_HEAD]
            wide = not self.text.isascii() or any(rare in head for rare in words.RARE)
            heads = words.HEADS_WIDE if wide else words.HEADS
            self._heads = [match.start() for match in self.ends.matches(heads)]
        return self._heads

    def cues(self, stop: int) -> tuple[list[tuple[int, bool]], list[int]]:
        """Lines before `stop` that begin another part of the prompt than its documents.

        Returns:
            starts of lines that announce the question, each with whether it is the question itself
            rather than the answer; and starts of other parts.
        """
        known = self._cues.get(stop)
        if known is None:
            first = max(0, stop - LONGEST_TAIL)
            tail = self.lined[first : stop + 1]
            asked = [
                (first + match.start(), match["asked"] is not None)
                for match in cues.questions(tail)
            ]
            other = [first + match.start() for match in cues.other_parts(tail)]
            known = self._cues[stop] = asked, other
        return known
