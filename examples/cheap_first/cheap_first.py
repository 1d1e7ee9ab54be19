"""A scorer that prefers cheaper endpoints, by the price in a label."""

import numpy as np

from laar import Floats, View


class CheapFirst:
    """Scores 1 for the cheapest candidate, and 0.5 for a candidate that costs twice as much.

    Args:
        label: label of the endpoints with their price, in any unit.
    """

    def __init__(self, *, label: str = "price") -> None:
        self._label = label

    def score(self, view: View) -> Floats:
        """Return a score for each candidate; a missing price is taken as the highest."""
        prices = np.array([self._price(view, slot) for slot in view.slots])
        if np.isnan(prices).all():
            return np.ones(len(prices))
        prices = np.where(np.isnan(prices), np.nanmax(prices), prices)
        return prices.min() / prices

    def _price(self, view: View, slot: int) -> float:
        try:
            price = float(view.table.spec(slot).labels[self._label])
        except (KeyError, ValueError):
            return np.nan
        return price if price > 0 else np.nan
