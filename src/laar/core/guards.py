"""Guards: a part that fails costs its own share of a decision, never the request.

Learners, estimators and observers are wrapped once, when the director is built. A wrapped call
returns None after a fault and counts it; the caller continues with a simpler substitute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from laar.core.interfaces import PolicyPart

P = ParamSpec("P")
T = TypeVar("T")

Reasoned = Literal["assessor", "prefixes", PolicyPart]
"""Parts whose fault is the reason of a decision: `degraded-assessor` and so on."""

Part = Reasoned | Literal["health", "learning", "tuner", "watching"]


class Faults(Counter[str]):
    """How often each part has failed."""

    def reason(self, part: Reasoned) -> str:
        """The reason code of a decision made without the part."""
        return f"degraded-{part}"


def guarded(call: Callable[P, T], part: Part, faults: Faults) -> Callable[P, T | None]:
    """The call, which returns None and counts a fault where it would raise."""

    def attempt(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception:  # noqa: BLE001 - this is the guard
            faults[part] += 1
            return None

    return attempt
