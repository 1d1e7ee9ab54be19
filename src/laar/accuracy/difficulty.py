"""P(correct) after other models have failed, given a difficulty that all models share.

LAAR assumes independent attempts (section 5.1). They are not: a hard question is hard for all. Here
a question has a hidden difficulty d, standard normal, and model m is right with log odds

    z_m * sqrt(1 + pi/8 * spread^2) + spread * d

so that over all difficulties it is right with about sigmoid(z_m), the artifact's probability (the
factor is the usual probit approximation of a logistic-normal integral). By Bayes' rule, a failure
is evidence about d, and the stronger the likelier success was. The integral over d is a sum over a
few nodes (Gauss-Hermite), which takes a few microseconds, and only on retries.

This is the Rasch model of test theory with the log odds as the models' abilities (Rasch 1960).

The model that failed may be asked again. Where an answer is reproducible
(`laar.request.is_reproducible`) that is worth nothing. Else it is another draw, which is right
less often than d says, as some questions are hard for one model only: P(correct) is multiplied by a
share, a posterior mean that `Repeats` learns from reported repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from laar.accuracy.features import Name
from laar.latest import Latest

MAX_SPREAD = 6.0
"""Maximum spread; beyond it a question is either trivial or impossible for all models."""

_NODES = 21
_EDGE = 1e-4

_Floats = NDArray[np.float64]

_at, _weights = np.polynomial.hermite_e.hermegauss(_NODES)
nodes: tuple[_Floats, _Floats] = _at, _weights / _weights.sum()
"""Difficulties and their weights; both of shape (21,)."""

WORTH = 0.7
"""Share before any report: the geometric mean of 0.44 to 1.35, by published repeated draws of
DeepSeek-R1-Distill-Qwen-7B in three modes on GSM8K (1 and 5 draws) and AIME 2024 (1 and 64;
github.com/Muqi1029/NoThink-project), at a spread of 2."""

_WEIGHT = 5.0  # weight of `WORTH`, in right answers expected without the share
_MEMORY = 50.0  # such answers after which earlier ones count half
_MAX_MODELS = 1024


def curves(probabilities: _Floats, spread: float) -> _Floats:
    """Return P(correct) of each model at each node; shape (..., models, 21)."""
    p = np.clip(probabilities, _EDGE, 1 - _EDGE)
    log_odds = np.log(p / (1 - p)) * (1 + pi / 8 * spread**2) ** 0.5
    at: _Floats = 1 / (1 + np.exp(-(log_odds[..., None] + spread * nodes[0])))
    return at


def given(probabilities: _Floats, failures: NDArray[np.int_ | np.bool_], spread: float) -> _Floats:
    """Return P(correct) of each model, given how often each was wrong; shape (models,)."""
    at = curves(probabilities, spread)
    weights = nodes[1] * np.prod(np.power(1 - at, failures[:, None]), axis=0)
    moved: _Floats = at @ (weights / weights.sum())
    return moved


class Repeat(NamedTuple):
    """The outcome of a repeat; without the share, it would have been right with P = `expected`."""

    model: Name
    expected: Annotated[float, Meta(ge=0, le=1)]
    correct: bool


_Sum = Annotated[float, Meta(ge=0, le=1e4)]


class Repeats:
    """Learns from reports what share of P(correct) a repeat of each model keeps."""

    def __init__(self) -> None:
        self._seen: Latest[str, tuple[float, float]] = Latest(_MAX_MODELS)
        self.on_reported: Callable[[Repeat], None] = lambda _repeat: None
        """Called with each repeat that was reported to this picker."""

    def share(self, model: str) -> float:
        """Return the share, at most 1."""
        right, expected = self._seen.get(model, (0.0, 0.0))
        return min((WORTH * _WEIGHT + right) / (_WEIGHT + expected), 1.0)

    def observe(self, repeat: Repeat) -> None:
        """Record a repeat that was reported to this picker."""
        self.heard(repeat)
        self.on_reported(repeat)

    def heard(self, repeat: Repeat) -> None:
        """Record a repeat reported to this or another picker."""
        model, expected, correct = repeat
        right, total = self._seen.get(model, (0.0, 0.0))
        keep = 0.5 if total > _MEMORY else 1.0
        self._seen[model] = keep * right + correct, keep * total + expected

    def state(self) -> list[tuple[str, float, float]]:
        """Return what was learned, as plain JSON types. Thread-safe."""
        return [(model, *seen) for model, seen in list(self._seen.items())]

    def restore(self, state: object) -> None:
        """Restore a saved state; skip what is invalid."""
        for entry in state[-_MAX_MODELS:] if isinstance(state, list) else ():
            try:
                model, *seen = msgspec.convert(entry, tuple[Name, _Sum, _Sum])
            except (msgspec.ValidationError, RecursionError):
                continue
            self._seen[model] = seen[0], seen[1]
