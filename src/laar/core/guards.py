"""Guards: if a part fails, a decision lacks its contribution, but the request is not lost.

Learners and observers of each request run as a list of steps (`run_steps`). Rarer calls are made
by `Faults.attempt`, which returns None after an error; the caller continues with a simpler
substitute. Errors are counted.
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
