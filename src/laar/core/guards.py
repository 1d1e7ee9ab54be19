"""Guards: if a part fails, a decision lacks its contribution, but the request is not lost.

Learners and observers of each request run as a list of steps (`run_steps`). Rarer calls are made
by `Faults.attempt`, which returns None after an error; the caller continues with a simpler
substitute. Errors are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

from laar.core.interfaces import PolicyPart

P = ParamSpec("P")
T = TypeVar("T")

Reasoned = Literal["assessor", "prefixes", PolicyPart]
"""Parts whose failure becomes the reason of a decision: `degraded-assessor` and so on."""

Part = Reasoned | Literal["health", "learning", "watching"]

Step = tuple[Part, Callable[..., object]]
"""A call and the part it belongs to."""


@dataclass(slots=True)
class Observers:
    """Who hears of each event, in the order in which they were added.

    Args:
        placed: an endpoint was chosen, or the request has moved; with the decision and the time.
        counted: the decision is reserved; with the decision.
        ending: the request has ended, and is still counted; with the decision and the completion.
        ended: the request has ended; with the same.
        left: an endpoint was removed; with its slot.
    """

    placed: list[Step] = field(default_factory=list)
    counted: list[Step] = field(default_factory=list)
    ending: list[Step] = field(default_factory=list)
    ended: list[Step] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)

    def add(self, part: Part, **calls: Callable[..., object] | None) -> None:
        """Add the calls of a part, each named as the event that it hears of."""
        for event, call in calls.items():
            if call is not None:
                getattr(self, event).append((part, call))


class Faults(Counter[str]):
    """Number of failures of each part."""

    def degraded(self, part: str) -> str:
        """Count a failure; return the reason code of a decision made without the part."""
        self[part] += 1
        return f"degraded-{part}"

    def attempt(
        self, part: Part, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Make a call; if it raises, count a failure of the part and return None."""
        try:
            return call(*args, **kwargs)
        except Exception:  # noqa: BLE001 - this is the guard
            self[part] += 1
            return None


def run_steps(steps: Iterable[Step], faults: Faults, *args: Any) -> None:
    """Make all calls; count each that fails, and continue with the next."""
    for part, call in steps:
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1
