"""Guards: a part that fails costs its own share of a decision, never the request.

What learns from each request or observes it is a list of steps (`take`). Calls that few requests
need are wrapped (`guarded`): a wrapped call returns None after a fault, and the caller continues
with a simpler substitute. Faults are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, ParamSpec, TypeVar

from laar.core.interfaces import PolicyPart

P = ParamSpec("P")
T = TypeVar("T")

Reasoned = Literal["assessor", "prefixes", PolicyPart]
"""Parts whose fault is the reason of a decision: `degraded-assessor` and so on."""

Part = Reasoned | Literal["health", "learning", "tuner", "watching"]


Step = tuple[Part, Callable[..., object]]
"""A call that belongs to a part."""


class Faults(Counter[str]):
    """How often each part has failed."""

    def degraded(self, part: Reasoned) -> str:
        """Count a fault; return the reason code of a decision that is made without the part."""
        self[part] += 1
        return f"degraded-{part}"


def take(steps: Iterable[Step], faults: Faults, *args: Any) -> None:
    """Make all calls; count a fault in one and go on with the next."""
    for part, call in steps:
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1


def guarded(call: Callable[P, T], part: Part, faults: Faults) -> Callable[P, T | None]:
    """Wrap a call: it returns None and counts a fault where it would raise."""

    def attempt(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1
            return None

    return attempt
