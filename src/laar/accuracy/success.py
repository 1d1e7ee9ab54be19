"""Combine P(correct) as the picker uses it: fitted prior, reported outcomes, failed models.

They are combined in one place, because each needs the others: the outcome of a retry must be
compared with its expectation at that point, and failures shift the corrected probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes


class SuccessModel:
    """Success probabilities that learn from outcomes.

    Args:
        capability: the fitted prior; may be replaced.
        online: reported outcomes; None to use the prior unchanged.
    """

    def __init__(self, capability: CapabilityModel, online: OnlineOutcomes | None = None) -> None:
        self.capability = capability
        self.online = online
        if online is not None:
            online.measured = lambda model, features: self.capability.measured(model, features)
            online.prior = self._prior
            online.prior_id = lambda: self.capability.digest

    def probabilities(
        self, models: Sequence[str], features: Features, now: float
    ) -> NDArray[np.float64]:
        """Return P(correct) of each model at the first attempt; read-only."""
        row = self.capability.probabilities(models, features)
        return self.given(row, models, features, (), now)

    def given(
        self,
        row: NDArray[np.float64],
        models: Sequence[str],
        features: Features,
        tried: Sequence[str],
        now: float,
    ) -> NDArray[np.float64]:
        """Return prior probabilities, corrected by reports and by the failures of `tried`."""
        if self.online:
            row = self.online.posterior(row, models, features, now)
        return self.capability.given_failures(row, models, tried) if tried else row

    def observe(
        self,
        model: str,
        features: Features,
        tried: Sequence[str],
        correct: bool,
        now: float,
        *,
        weight: float = 1.0,
        offset: float = 0.0,
        tenant: str = "",
        reporter: str = "",
    ) -> bool:
        """Record an outcome of `model`, reached after all of `tried` had failed.

        Returns:
            False if the outcome was not used.
        """
        if self.online is None:
            return False
        if tried:
            everyone = (model, *(other for other in dict.fromkeys(tried) if other != model))
            row = self.probabilities(everyone, features, now)
            offset = float((row - self.capability.given_failures(row, everyone, tried))[0])
        return self.online.observe(
            model,
            features,
            correct,
            now,
            weight,
            prior=self._prior(model, features),
            offset=offset,
            tenant=tenant,
            reporter=reporter,
        )

    def _prior(self, model: str, features: Features) -> float:
        return float(self.capability.probabilities((model,), features)[0])
