"""The candidates that a request may go to: a mask per cause of exclusion, and their intersection.

Flow control is binding, and so is the prompt's length, except that a prompt that seems to fit
nowhere may go to the endpoints with the longest windows. Sleep, the retry rule and a policy's
filters are preferences: their masks are dropped if no candidate would remain.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from laar.core.endpoints import Mask
from laar.core.interfaces import NoRoomError, Room, View

Cause = Literal["window", "room", "asleep", "tried", "policy"]
"""Why an endpoint is excluded: the prompt is too long; flow control has no room; the engine is
asleep, and the policy computes no cost; the retry rule; a filter of the policy."""

Eligible = dict[Cause, Mask]
"""By cause, the candidates not excluded for it, the most important cause first; empty if all
remain. At least one candidate is in every mask; the others rank behind those."""


def able_to_take(view: View, room: Room | None) -> Eligible:
    """Return the candidates that have room and fit the prompt.

    Raises:
        NoRoomError: no candidate that fits the prompt has room.
    """
    fits = _fits_window(view) if view.table.windowed else np.ones(len(view.slots), np.bool_)
    if room is None:
        return {"window": fits}
    roomy = room(view)
    if not (fits & roomy).any():
        raise NoRoomError(view, fits)
    return {"window": fits, "room": roomy}


def in_all(eligible: Eligible) -> Mask | None:
    """Return the candidates that no cause excludes; None means all of them."""
    return np.logical_and.reduce([*eligible.values()]) if eligible else None


def prefer(eligible: Eligible, cause: Cause, keep: Mask) -> None:
    """Restrict the candidates to those that a mask keeps, unless none would be left."""
    may = in_all(eligible)
    if (keep if may is None else may & keep).any() and (eligible or not keep.all()):
        eligible[cause] = keep


def _fits_window(view: View) -> Mask:
    """Return the endpoints whose window fits the estimated prompt; else those with the largest.

    No request is refused here, since the length is only an estimate, and the engine may truncate
    the prompt or treat the texts of one body as separate prompts.
    """
    windows = view.table.window_tokens[view.slots]
    fits: Mask = view.tokens <= windows
    if not fits.any():
        fits = windows == windows.max()
    return fits
