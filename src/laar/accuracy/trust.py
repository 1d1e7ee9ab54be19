"""The weight of a model's prior, according to how well it predicted reported outcomes.

An artifact may be wrong about a model as a whole: fitted on other questions, or on another model
with the same name. Its prior should then weigh less than a correct one. Of several weights, the one
under which the outcomes are most probable is used. This is empirical Bayes for the strength of a
power prior; a cell with prior p, n outcomes and s correct ones has, under weight k, the
beta-binomial likelihood

    B(k p + s, k (1 - p) + n - s) / B(k p, k (1 - p)).

A cell's prior is weighted by evidence from the model's other cells. Its own outcomes already weigh
against the prior, and false reports on one kind of request must not be able to remove the prior as
well.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma, log
from operator import add, sub

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Possible shares of its full weight that a prior keeps. Their prior probabilities are proportional
to them, so that doubting an artifact takes evidence."""
_START = [log(share) for share in SHARES]

_EDGE = 0.02
"""Margin that keeps priors away from 0 and 1, so that one outcome can't decide."""

Evidence = Sequence[float]
"""Log likelihood of a cell's outcomes under each of `SHARES`."""


class PriorTrust:
    """Learns what share of its full weight each model's prior keeps."""

    def __init__(self) -> None:
        self.models: dict[str, list[float]] = {}
        """Log probability of each share, by model."""

    def evidence(self, prior: float, correct: float, outcomes: float, weight: float) -> Evidence:
        """Return a cell's evidence from these counts, for a full weight of `weight` outcomes.

        Offsets may have moved `correct` out of bounds; it is clamped.
        """
        p = min(max(prior, _EDGE), 1 - _EDGE)
        s = min(max(correct, 0.0), outcomes)
        return [log_beta_binomial(s, outcomes, p, weight * share) for share in SHARES]

    def take(self, model: str, evidence: Evidence, instead_of: Evidence) -> None:
        """Replace a cell's earlier evidence about the model; empty means none."""
        total = self.models.get(model, _START)
        if instead_of:
            total = list(map(sub, total, instead_of))
        self.models[model] = list(map(add, total, evidence))

    def share(self, model: str, own: Evidence = ()) -> float:
        """Return the share of its weight that a prior keeps, by evidence other than `own`."""
        total = self.models.get(model)
        if total is None:
            return SHARES[0]
        others = list(map(sub, total, own)) if own else total
        return SHARES[others.index(max(others))]


def log_beta_binomial(s: float, n: float, mean: float, concentration: float) -> float:
    """Return the log likelihood of `s` of `n` outcomes, in their order, under a beta prior."""
    a, b = concentration * mean, concentration * (1 - mean)
    return _log_beta(a + s, b + n - s) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
