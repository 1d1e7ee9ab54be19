"""The candidates that a request may go to: a mask per cause of exclusion, and their intersection.

Flow control is binding, and so are the needs of the request (`Plugin.fit`), of which some
candidate meets the most. Earlier refusals, the retry rule, what plug-ins keep and a policy's
filters are preferences: their masks are dropped if no candidate would remain.
"""

from __future__ import annotations

import numpy as np

from laar.core.interfaces import NoRoomError, Room, View
from laar.fleet.endpoints import Mask

Cause = str
"""Why an endpoint is excluded: `window`, the request is too long; `room`, flow control has none;
`refuses`, the engine refuses such requests; `tried`, the retry rule; the name of a plug-in that
keeps others; `policy`, a filter."""

Eligible = dict[Cause, Mask]
"""By cause, the candidates not excluded for it, the most important cause first; empty if all
remain. At least one candidate is in every mask; the others rank behind those."""


def able_to_take(view: View, room: Room | None) -> Eligible:
    """Return the candidates that the request fits, and that have room.

    Raises:
        NoRoomError: no candidate that the request fits has room.
    """
    eligible: Eligible = {} if view.fits is None else {"window": view.fits}
    if room is not None:
        eligible["room"] = room(view)
        if not np.logical_and.reduce([*eligible.values()]).any():
            raise NoRoomError(view)
    return eligible


def in_all(eligible: Eligible) -> Mask | None:
    """Return the candidates that no cause excludes; None means all of them."""
    return np.logical_and.reduce([*eligible.values()]) if eligible else None


def prefer(eligible: Eligible, cause: Cause, keep: Mask) -> None:
    """Restrict the candidates to those that a mask keeps, unless none would be left."""
    may = in_all(eligible)
    if (keep if may is None else may & keep).any() and (eligible or not keep.all()):
        eligible[cause] = keep
