"""The candidates that a request may go to: a mask per cause of exclusion, and their intersection.

Flow control is binding, and so is the prompt's length, except that a prompt that seems to fit
nowhere may go to the endpoints with the longest windows. Sleep, the retry rule and a policy's
filters are preferences: their masks are dropped if no candidate would remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from laar.core.endpoints import Mask
from laar.core.interfaces import NoRoomError, Room, View

Cause = Literal["window", "room", "asleep", "tried", "policy"]
"""Why an endpoint is excluded: the prompt is too long; flow control has no room; the engine is
asleep, and the policy computes no cost; the retry rule; a filter of the policy."""


@dataclass(frozen=True, slots=True)
class Eligible:
    """The candidates that remain. The others rank behind them.

    Args:
        may: mask of those that remain, at least one.
        kept: mask of the candidates that each cause leaves, the most important cause first.
    """

    may: Mask
    kept: Mapping[Cause, Mask]

    def cause(self, at: int) -> Cause | None:
        """Return the cause that excluded the candidate at a position; None if it remains."""
        return next((cause for cause, mask in self.kept.items() if not mask[at]), None)


def able_to_take(view: View, room: Room | None) -> Eligible:
    """Return the candidates that have room and fit the prompt.

    Raises:
        NoRoomError: no candidate that fits the prompt has room.
    """
    fits = _fits_window(view) if view.table.windowed else np.ones(len(view.slots), np.bool_)
    if room is None:
        return Eligible(fits, {"window": fits})
    roomy = room(view)
    both = fits & roomy
    if not both.any():
        raise NoRoomError(view, fits)
    return Eligible(both, {"window": fits, "room": roomy})


def prefer(able: Eligible | None, cause: Cause, keep: Mask) -> Eligible | None:
    """Restrict the candidates to those that a mask keeps; return `able` if none would be left."""
    if able is None:
        return None if keep.all() or not keep.any() else Eligible(keep, {cause: keep})
    both = able.may & keep
    return Eligible(both, {**able.kept, cause: keep}) if both.any() else able


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
