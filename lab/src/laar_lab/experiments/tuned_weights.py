"""Tuned weights against published ones, on real traffic that the climb never saw.

The climb runs on the first half of the chat trace, on `TRAINING_SEED`; each seed then measures a
window of the second half. A policy's weights are tuned in a wide box around the published ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import Scorer, View
from laar.core.policy import Policy
from laar.policies.llm_d import KvCacheUtilization, PrefixCacheMatch, QueueDepth, TokenLoad
from laar.policies.pickers import ShuffledMaxScore
from laar.policies.simple import LeastLoaded
from laar.tuning.settings import TunerSettings
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.policies.gorgo import PUBLISHED_WEIGHTS, Gorgo
from laar_lab.report import Report, Table, means_table
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Site,
    VirtualFleet,
    generator,
    replay_open,
)
from laar_lab.suite import fleets, real
from laar_lab.sweep import grid, sweep
from laar_lab.tally import Tally
from laar_lab.trace import TRACE_BLOCK_TOKENS
from laar_lab.tuning import tune

TRAINING_SEED = 5000
_WINDOWS = 30
_WINDOW_S = 300.0
_UNCOUNTED_S = 60.0
_WIDE = 10.0  # the box: a tenth of a published weight to ten times
_MOST_IN_FLIGHT = 1024

_Weights = tuple[tuple[str, float], ...]

PUBLISHED: dict[str, _Weights] = {
    "llm-d": (("queue", 2.0), ("kv", 2.0), ("prefix", 3.0)),
    "own": (("prefix", 1.0), ("least-loaded", 1.0), ("token-load", 1.0)),
    "gorgo": tuple(PUBLISHED_WEIGHTS.items()),
}
"""Weights by policy. Those of `own`, a user's composition, are equal: nobody has published any."""

_SCORERS: dict[str, Scorer] = {
    "queue": QueueDepth(),
    "kv": KvCacheUtilization(),
    "prefix": PrefixCacheMatch(),
    "least-loaded": LeastLoaded(),
    "token-load": TokenLoad(threshold_tokens=200_000.0),
}


class _Composed:
    """The weighted mean of scorers, by the tuner's weights if it sets any."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def score(self, view: View) -> Floats:
        weights = view.weights or self._weights
        total = sum(weights.values())
        parts = [weight * _SCORERS[name].score(view) for name, weight in weights.items()]
        return np.sum(parts, axis=0) / total


def _policies(name: str, weights: _Weights) -> dict[str, Policy]:
    scorer: Scorer = Gorgo(**dict(weights)) if name == "gorgo" else _Composed(dict(weights))
    return {name: Policy(name=name, scorers=[(scorer, 1.0)], picker=ShuffledMaxScore())}


def _sites(name: str) -> list[Site]:
    return fleets.regions(2) if name == "gorgo" else fleets.of_one("llama-3-8b-a100", 8)


def _half(
    data: Path, second: bool, start_s: float = 0.0, length_s: float = 1e9
) -> Iterator[Arrival]:
    lines = real._trace(real._file(data, real.CONVERSATIONS))
    middle_s = (lines[0][0] + lines[-1][0]) / 2.0
    first_s = (middle_s if second else lines[0][0]) + start_s
    last_s = lines[-1][0] if second else middle_s
    for at_s, line in lines:
        if first_s <= at_s < min(last_s, first_s + length_s):
            yield Arrival(at_s=at_s - first_s, prompt=line.prompt(TRACE_BLOCK_TOKENS))


def climb(name: str, data: Path, windows: int) -> dict[str, float]:
    """Tune a policy on the first half of the trace; return the weights it would export."""
    initial = dict(PUBLISHED[name])
    bounds = {key: (weight / _WIDE, weight * _WIDE) for key, weight in initial.items()}
    settings = TunerSettings(
        bounds=bounds, objective="ttft-p95", max_windows=windows, seed=TRAINING_SEED
    )
    tuner = tune(
        lambda: _half(data, second=False),
        _sites(name),
        FleetSettings(policy=name),
        settings,
        initial,
        seed=TRAINING_SEED,
        policies=_policies(name, PUBLISHED[name]),
    )
    return cast("dict[str, float]", tuner.export()["weights"])


def run_one(name: str, weights: _Weights, data: Path, seed: int) -> dict[str, float]:
    """Run a policy on a window of the second half."""
    lines = real._trace(real._file(data, real.CONVERSATIONS))
    most_s = (lines[-1][0] - lines[0][0]) / 2.0 - _WINDOW_S
    start_s = generator(seed, "window").uniform(0.0, most_s)
    fleet = VirtualFleet(
        _sites(name), FleetSettings(policy=name), seed=seed, policies=_policies(name, weights)
    )
    tally = Tally()

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if arrival.at_s >= _UNCOUNTED_S:
            tally.add(arrival, exchange)

    arrivals = _half(data, second=True, start_s=start_s, length_s=_WINDOW_S)
    replay_open(fleet, arrivals, ended, max_in_flight=_MOST_IN_FLIGHT)
    return tally.numbers()


def run(scope: Scope) -> Report:
    """Tune each policy once, then compare its weights on every seed."""
    assert scope.data is not None
    data, windows = scope.data, 8 if scope.quick else _WINDOWS
    names = tuple(PUBLISHED)
    found = sweep(climb, [(name, data, windows) for name in names], label="tuned-weights: tuning")
    weights = {
        (name, way): PUBLISHED[name] if way == "published" else tuple(tuned.items())
        for (name, tuned), way in product(zip(names, found, strict=True), ("published", "tuned"))
    }
    cases = {key: (key[0], of, data) for key, of in weights.items()}
    runs = grid(run_one, cases, scope.seeds, label="tuned-weights")
    shown = {"ttft_p50_s": "TTFT p50 s", "ttft_p95_s": "p95", "e2e_p95_s": "E2E p95 s"}
    table = means_table("held-out half of the chat trace", ("policy", "weights"), runs, shown)
    learned = Table(
        title="tuned weights",
        columns=("policy", "weights"),
        rows=[
            (n, ", ".join(f"{k} {v:.3g}" for k, v in w.items()))
            for n, w in zip(names, found, strict=True)
        ],
    )
    evidence = {
        name: {"": paired(runs[name, "tuned"], runs[name, "published"], "ttft_p95_s")}
        for name in names
    }
    return Report(tables=[table, learned], evidence=evidence)


EXPERIMENTS = declared(__name__, {"tuned-weights": run})
