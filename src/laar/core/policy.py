"""A policy: filters, weighted scorers, and whether it considers earlier attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laar.core.interfaces import Filter, Picker, Scorer, View
from laar.core.picker import pick, ranking
from laar.fleet.endpoints import Floats, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A named profile.

    Args:
        name: its name in settings, headers and reasons.
        scorers: each with its weight, 0 or more; the score is their weighted mean, in 0..1.
        filters: in order. A candidate that a filter excludes ranks last and can still be a
            fallback. A filter that would leave no candidate is skipped.
        picker: orders the remaining candidates; None means `laar.core.picker`.
        knows_retries: whether it considers the models already tried, and so reports exhaustion.
    """

    name: str
    scorers: Sequence[tuple[Scorer, float]]
    filters: Sequence[Filter] = ()
    picker: Picker | None = None
    knows_retries: bool = False

    def keep(self, view: View) -> Mask | None:
        """Return the candidates that the filters keep; None means all of them."""
        kept: Mask | None = None
        for filter_ in self.filters:
            try:
                mask = filter_.keep(view)
            except Exception as error:  # noqa: BLE001 - a failing filter must not fail the request
                view.fault("filter", filter_, error)
                continue
            both = mask if kept is None else kept & mask
            if both.any():
                kept = both
        return kept

    def score(self, view: View) -> Floats:
        """Return a score for each candidate, in 0..1.

        A scorer that fails is left out; if all fail, the score is by requests in flight.
        """
        total, weights = np.zeros(len(view.slots)), 0.0
        for scorer, weight in self.scorers:
            try:
                scores = scorer.score(view)
                if not math.isfinite(np.add.reduce(scores)):
                    raise FloatingPointError("a score is not finite")
            except Exception as error:  # noqa: BLE001 - a failing scorer must not fail the request
                view.fault("scorer", scorer, error)
                continue
            if len(self.scorers) == 1:  # the common case
                return scores
            total += weight * scores
            weights += weight
        view.terms, view.reason = None, ""  # set by one scorer, they do not explain the mean
        return total / weights if weights else 1.0 / (1.0 + view.in_flight)

    def order(
        self, scores: Floats, view: View, masks: Sequence[Mask], first: int | None = None
    ) -> list[int]:
        """Return positions of the candidates: the picked one, then the fallbacks.

        Args:
            scores: scores of the candidates.
            view: the view of the candidates.
            masks: masks of the eligible candidates, the most important first.
            first: a candidate to pick regardless of its score; None to pick by score.
        """
        if self.picker is not None and first is None:
            try:
                return self._ordered(self.picker, scores, view, masks)
            except Exception as error:  # noqa: BLE001 - as above
                view.fault("picker", self.picker, error)
        return pick(scores, view.queued_tokens, view.rng, masks, first=first)

    def _ordered(
        self, picker: Picker, scores: Floats, view: View, masks: Sequence[Mask]
    ) -> list[int]:
        """Have the picker order the candidates that every mask keeps; the others rank last."""
        if not masks:
            return list(picker.order(scores, view))
        able = np.flatnonzero(np.logical_and.reduce(masks))
        best = able[np.asarray(picker.order(scores[able], view.at(able)), np.intp)].tolist()
        return list(dict.fromkeys([*best, *ranking(scores, masks).tolist()]))
