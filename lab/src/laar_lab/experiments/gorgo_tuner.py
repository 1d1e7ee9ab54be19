"""The climb on a known cost: a bowl in the logarithms of two weights.

laar's climb should get near the optimum even if every window is off by a tenth. The published climb
should then do worse, because it evaluates each candidate once and keeps the luckiest score. The
noise is per window, not per request, because it represents differences in traffic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_published import PublishedClimb
from laar_lab.policies.gorgo import PUBLISHED_WEIGHTS
from laar_lab.report import Report
from laar_lab.tuning.tuner import Tuner, TunerSettings
from laar_lab.tuning.windows import Observed

_BOX = {"rtt_weight": (0.01, 10.0), "queue_weight": (0.01, 10.0)}
_START = {"rtt_weight": 0.5, "queue_weight": 0.1}
_BEST = PUBLISHED_WEIGHTS
_NOISE = 0.1
_WINDOW = 20
_FEW, _MANY = 40, 100


def _bowl(weights: Mapping[str, float]) -> float:
    return 1.0 + sum(math.log(weights[name] / best) ** 2 for name, best in _BEST.items())


def _grid() -> float:
    """Return the best value on a seven-by-seven grid, as a sweep would find it."""
    steps = [10.0 ** (power / 2.0) for power in range(-4, 3)]
    return min(_bowl({"rtt_weight": a, "queue_weight": b}) for a in steps for b in steps)


def _ours(seed: int, windows: int, noise: float) -> float:
    """Return the true cost of the weights that laar's tuner finds."""
    settings = TunerSettings(bounds=_BOX, window=_WINDOW, max_windows=windows, seed=seed)
    tuner, rng = Tuner(settings, _START), random.Random(f"noise {seed}")
    version, error = 0, 1.0
    while not tuner.frozen:
        weights = tuner.weights(0.0)
        if weights.version != version:
            version, error = weights.version, math.exp(noise * rng.gauss(0.0, 1.0))
        if weights.version:
            cost = _bowl(weights.values) * error
            tuner.observe(Observed(version=weights.version, ttft_s=cost, e2e_s=cost), 0.0)
    return _bowl(tuner.best)


def _published(seed: int, windows: int, noise: float) -> float:
    """Return the true cost of the final weights of the published climb."""
    climb, rng = PublishedClimb(_BOX, _START, seed=seed), random.Random(f"noise {seed}")
    for _ in range(windows):
        climb.report(-_bowl(climb.weights(0.0).values) * math.exp(noise * rng.gauss(0.0, 1.0)))
    return _bowl(climb.best)


def run(scope: Scope) -> Report:
    """Run both climbs without and with noise."""
    grid = _grid()
    quiet = [_ours(seed, _FEW, 0.0) for seed in scope.seeds]
    noisy = [_ours(seed, _MANY, _NOISE) for seed in scope.seeds]
    published = [_published(seed, _MANY, _NOISE) for seed in scope.seeds]
    return Report(
        evidence={
            "arrives": {"": Seen([float(cost <= 1.2) for cost in quiet])},
            "through-noise": {"": Seen([float(cost <= 1.15 * grid) for cost in noisy])},
            "published-misled": {"": Seen(published, noisy)},
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-tuner": run})
