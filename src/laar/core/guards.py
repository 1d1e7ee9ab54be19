"""Guards: if a part fails, a decision lacks its contribution, but the request is not lost.

Learners and observers of each request run as a list of steps (`run_steps`). Rarer calls are
wrapped (`guarded`): a wrapped call returns None after an error, and the caller continues with a
simpler substitute. Errors are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, ParamSpec, TypeVar

from laar.core.interfaces import PolicyPart

P = ParamSpec("P")
T = TypeVar("T")

Reasoned = Literal["assessor", "prefixes", PolicyPart]
"""Parts whose failure becomes the reason of a decision: `degraded-assessor` and so on."""

Part = Reasoned | Literal["health", "learning", "tuner", "watching"]


Step = tuple[Part, Callable[..., object]]
"""A call and the part it belongs to."""


class Faults(Counter[str]):
    """Number of failures of each part."""

    def degraded(self, part: Reasoned) -> str:
        """Count a failure; return the reason code of a decision made without the part."""
        self[part] += 1
        return f"degraded-{part}"


def run_steps(steps: Iterable[Step], faults: Faults, *args: Any) -> None:
    """Make all calls; count each that fails, and continue with the next."""
    for part, call in steps:
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1


def guarded(call: Callable[P, T], part: Part, faults: Faults) -> Callable[P, T | None]:
    """Wrap a call to return None and count a failure if it would raise."""

    def attempt(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1
            return None

    return attempt
