"""One text of a prompt as the recognisers see it, and what is said around it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["NO_SURROUNDINGS", "Surroundings", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else a prompt says; evidence for or against documents in one of its texts.

    Args:
        said: other texts of the prompt, cut to what is worth reading.
        by_tool: the text is the result of a tool that looks things up.
        asked_apart: a question stands in another text.
    """

    said: str = ""
    by_tool: bool = False
    asked_apart: bool = False


NO_SURROUNDINGS = Surroundings()


@dataclass(slots=True)
class View:
    """A text with a line end before it, so that every line begins behind one.

    Args:
        text: as it reads.
        around: what else is said.
    """

    text: str
    around: Surroundings = NO_SURROUNDINGS
    lined: str = field(init=False)

    def __post_init__(self) -> None:
        self.lined = f"\n{self.text}"
