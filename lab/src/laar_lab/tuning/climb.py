"""Run the hill climb in the lab: replay a trace against a fleet until the tuner freezes.

The director is the production one; its policy's scorer gets the weights that the tuner proposes.
When the trace ends, it starts again with different prompts of the same shape, because in a second
pass the same prompts would all be cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

import numpy as np

from laar.core.decision import Completion, Decision
from laar.core.interfaces import Scorer, View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats
from laar_lab.sim.fleet import (
    Arrival,
    FleetSettings,
    Prompt,
    Site,
    VirtualFleet,
    replay_open,
)
from laar_lab.tuning.tuner import Tuner, TunerSettings, Weights
from laar_lab.tuning.windows import Observed

_OTHER_WORDS = 0xD1B54A32D192ED03  # not the multiplier of `spread`, which makes the ids
_PASS_GAP_S = 1.0
MAX_PASSES = 1000
"""Maximum number of passes over the trace, which may have only a handful of requests."""


class WeightSource(Protocol):
    """Proposes weights; `Tuner`, and the published climb in `laar_lab.experiments`."""

    def weights(self, now: float) -> Weights:
        """Return the weights for a decision; called once for each."""

    def observe(self, sample: Observed, now: float) -> None:
        """Record the outcome of a decision."""


class Climbing:
    """A scorer with the weights that a climb proposes, which reports the outcomes to it.

    Weights stay the same until a decision has used them.

    Args:
        fleet: the fleet; its policy gets this scorer.
        source: the climb.
        scorer_of: returns the policy's scorer with given weights.
    """

    def __init__(
        self,
        fleet: VirtualFleet,
        source: WeightSource,
        scorer_of: Callable[[Mapping[str, float]], Scorer],
    ) -> None:
        self._source, self._scorer_of = source, scorer_of
        self._next: Weights | None = None
        self._versions: dict[str, int] = {}
        policies = cast(dict[str, Policy], fleet.director.chooser.policies)
        name = fleet.settings.policy
        policies[name] = replace(policies[name], scorers=[(self, 1.0)])
        fleet.director.watch(decided=self._decided, settled=self._settled)

    def score(self, view: View) -> Floats:
        """Score with the weights of this decision."""
        if self._next is None:
            self._next = self._source.weights(view.now)
        return self._scorer_of(self._next.values).score(view)

    def _decided(self, decision: Decision) -> None:
        if self._next is not None:
            self._versions[decision.id] = self._next.version
            self._next = None

    def _settled(self, decision: Decision, end: Completion) -> None:
        if version := self._versions.pop(decision.id, 0):
            ttft_s = end.latency_s if end.ttft_s is None else end.ttft_s
            ok = end.ok and end.cause == "complete"
            sample = Observed(version=version, ttft_s=ttft_s, e2e_s=end.latency_s, ok=ok)
            self._source.observe(sample, decision.now + end.latency_s)


def tune(
    trace: Callable[[], Iterable[Arrival]],
    sites: Sequence[Site],
    picker: FleetSettings,
    settings: TunerSettings,
    initial: Mapping[str, float],
    scorer_of: Callable[[Mapping[str, float]], Scorer],
    *,
    seed: int,
    policies: Mapping[str, Policy] | None = None,
) -> Tuner:
    """Tune until the tuner freezes; return it.

    Args:
        trace: function that returns the schedule, each time from the beginning.
        sites: the fleet.
        picker: settings with the policy to tune.
        settings: settings of the climb.
        initial: initial weights, by the names in the bounds.
        scorer_of: returns the policy's scorer with given weights.
        seed: seed of the network and of ties.
        policies: policies by name; None for the product's.
    """
    tuner = Tuner(settings, initial)
    fleet = VirtualFleet(sites, picker, seed=seed, policies=policies)
    Climbing(fleet, tuner, scorer_of)
    replay_open(fleet, repeated(trace, tuner), lambda _arrival, _exchange: None)
    tuner.freeze()
    return tuner


def repeated(trace: Callable[[], Iterable[Arrival]], tuner: Tuner) -> Iterator[Arrival]:
    """Yield the requests of a trace again and again, until the tuner freezes."""
    begin_s = last_s = 0.0
    for number in range(MAX_PASSES):
        for arrival in trace():
            if tuner.frozen:
                return
            last_s = begin_s + arrival.at_s
            yield replace(arrival, at_s=last_s, prompt=_other(arrival, number))
        begin_s = last_s + _PASS_GAP_S


def _other(arrival: Arrival, number: int) -> Prompt:
    """Return the prompt, with different blocks in each pass; prefixes are shared within a pass."""
    if not number:
        return arrival.prompt
    mask = np.uint64(number * _OTHER_WORDS % (1 << 64))
    blocks = array("Q")
    blocks.frombytes((np.frombuffer(arrival.prompt.blocks, np.uint64) ^ mask).tobytes())
    return replace(arrival.prompt, blocks=blocks)
