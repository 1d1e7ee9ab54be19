"""Guards around extensions from other packages, which check the results on each request.

A guard raises if an extension breaks its contract, and the policy goes on without it: a filter
is skipped, a scorer left out of the sum, a picker replaced by `max-score`. laar's own extensions
need no guard: the checks of `laar.testing` cover them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laar.core.interfaces import BY_CANDIDATE, View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats, Mask


class BrokenPromiseError(Exception):
    """An extension's result breaks its contract; the message contains no part of the request."""


@dataclass(slots=True)
class Guarded:
    """A filter, scorer or picker whose results are checked.

    Args:
        inner: the extension.
        name: its name, for messages.
    """

    inner: Any
    name: str

    def keep(self, view: View) -> Mask:
        """Return the filter's mask; it must hold one boolean for each candidate."""
        _protect(view)
        mask = np.asarray(self.inner.keep(view))
        if mask.dtype != np.bool_ or mask.shape != view.slots.shape:
            raise BrokenPromiseError(_unlike("a mask", mask, view))
        return mask

    def score(self, view: View) -> Floats:
        """Return the scorer's scores, clamped to 0..1; each candidate must have a number.

        Its reason code is dropped: codes label metrics.
        """
        _protect(view)
        before = view.reason
        scores = np.asarray(self.inner.score(view), np.float64)
        if scores.shape != view.slots.shape:
            raise BrokenPromiseError(_unlike("scores", scores, view))
        if not np.isfinite(scores).all():
            raise BrokenPromiseError("a score is not finite")
        view.reason = before
        return np.clip(scores, 0.0, 1.0)

    def order(self, scores: Floats, view: View) -> Sequence[int]:
        """Return the picker's order as integers; it must contain each position once."""
        _protect(view)
        order = [int(position) for position in self.inner.order(scores.copy(), view)]
        if sorted(order) != list(range(len(scores))):
            raise BrokenPromiseError(
                f"an order of {len(scores)} candidates must contain each exactly once"
            )
        return order


def guarded(extension: Any, name: str) -> Any:
    """Return an extension with a guard around each of its parts; messages use `name`."""
    if not isinstance(extension, Policy):
        return Guarded(extension, name)
    return replace(
        extension,
        filters=[Guarded(filter_, name) for filter_ in extension.filters],
        scorers=[(Guarded(scorer, name), weight) for scorer, weight in extension.scorers],
        picker=Guarded(extension.picker, name) if extension.picker else None,
    )


def _unlike(what: str, array: np.ndarray[Any, Any], view: View) -> str:
    return f"{what} of shape {array.shape} and type {array.dtype} for {len(view.slots)} candidates"


def _protect(view: View) -> None:
    """Make the view's arrays read-only, so that writing to one fails in the extension.

    Some arrays are reused from one decision to the next.
    """
    for name in BY_CANDIDATE:
        array = getattr(view, name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
