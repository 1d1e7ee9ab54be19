"""P(correct) after other models have failed, given a difficulty that all models share.

LAAR assumes independent attempts (section 5.1). They are not: a hard question is hard for all. Here
a question has a hidden difficulty d, standard normal, and model m is right with log odds

    z_m * sqrt(1 + pi/8 * spread^2) + spread * d

so that over all difficulties it is right with about sigmoid(z_m), the artifact's probability (the
factor is the usual probit approximation of a logistic-normal integral). By Bayes' rule, a failure
is evidence about d, and the stronger the likelier success was. The integral over d is a sum over a
few nodes (Gauss-Hermite), which takes a few microseconds, and only on retries.

This is the Rasch model of test theory with the log odds as the models' abilities (Rasch 1960).
"""

from __future__ import annotations

from math import pi

import numpy as np
from numpy.typing import NDArray

MAX_SPREAD = 6.0
"""Maximum spread; beyond it a question is either trivial or impossible for all models."""

_NODES = 21
_EDGE = 1e-4

_Floats = NDArray[np.float64]

_at, _weights = np.polynomial.hermite_e.hermegauss(_NODES)
nodes: tuple[_Floats, _Floats] = _at, _weights / _weights.sum()
"""Difficulties and their weights; both of shape (21,)."""


def curves(probabilities: _Floats, spread: float) -> _Floats:
    """Return P(correct) of each model at each node; shape (..., models, 21)."""
    p = np.clip(probabilities, _EDGE, 1 - _EDGE)
    log_odds = np.log(p / (1 - p)) * (1 + pi / 8 * spread**2) ** 0.5
    at: _Floats = 1 / (1 + np.exp(-(log_odds[..., None] + spread * nodes[0])))
    return at


def given(probabilities: _Floats, failed: NDArray[np.bool_], spread: float) -> _Floats:
    """Return P(correct) of each model, given that those in `failed` were wrong; shape (models,)."""
    at = curves(probabilities, spread)
    weights = nodes[1] * np.prod(1 - at[failed], axis=0)
    moved: _Floats = at @ (weights / weights.sum())
    return moved
