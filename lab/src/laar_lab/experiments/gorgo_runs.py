"""GORGO's evaluation in the lab: three regions, one endpoint each, conversations, paired policies.

A run is one policy on one seed's trace. All replicas have the same profile (`gorgo-main` is
prefill-bound, `gorgo-hack` decode-bound). They are 37, 279 and 456 ms away, the farthest with
spells of 850 ms. The trace begins in the middle of conversations whose prefixes no endpoint has
cached yet, so its first fifth is not counted.

Prompts share blocks of 16 tokens. The engines' blocks have 64, which loses at most 48 tokens of a
prefix and makes runs twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from laar.core.cost import CostWeights
from laar.core.interfaces import Scorer
from laar.core.policy import Policy
from laar.policies import build_policies
from laar.policies.pickers import ShuffledMaxScore
from laar_lab.policies.gorgo import Gorgo
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    LinkProfile,
    Site,
    VirtualFleet,
    generator,
    replay_open,
)
from laar_lab.sweep import sweep
from laar_lab.tally import Tally
from laar_lab.tuning.climb import tune
from laar_lab.tuning.tuner import TunerSettings
from laar_lab.workloads.sessions import GORGO_CHATS, ChatShape, chats

NEAR = "ashburn:8000"
_LINKS = {
    NEAR: LinkProfile(rtt_s=0.037, jitter=0.05),
    "frankfurt:8000": LinkProfile(rtt_s=0.279, jitter=0.10),
    "seoul:8000": LinkProfile(rtt_s=0.456, jitter=0.20, spell_rtt_s=0.85, spell_share=0.05),
}
_BLOCK_TOKENS = 64
_UNCOUNTED_SHARE = 0.2

PAPER_BASELINES = (
    "simple-session-affinity",
    "aibrix-prefix-cache",
    "least-request",
    "least-load",
)
"""The baselines of GORGO's tables, as in its code."""

_GORGOS_AIBRIX = {"aibrix-prefix-cache": {"stdevs": 2.0}}
"""GORGO's evaluation allows two standard deviations above the mean; AIBrix allows one."""

PAPER_BOX = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
PAPER_WILDCHAT = (("rtt_weight", 2.0), ("queue_weight", 0.104))
"""GORGO's published weights for WildChat, whose prompts share little."""
PAPER_INITIAL = {"rtt_weight": 0.5, "queue_weight": 0.1}
TRAINING_SEEDS = 5000
"""Offset from a seed to the seed of the trace on which the weights are tuned."""
PAPER_INTERVAL_S = 30.0
"""Seconds between probes, and between scrapes, in GORGO's proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Parameters of a run.

    Args:
        policy: name of the policy.
        seed: seed of the trace and of the network; `on_seeds` sets it.
        time_scale: factor for the trace's times; 2 halves the load.
        minutes: minutes of the trace before scaling.
        profile: engine profile of the endpoints.
        shape: shape of the conversations.
        gorgo: weights of the policy `gorgo`, by name; empty for the published ones.
        weights: weights of the policy `laar`.
        interval_s: seconds between probes, and between scrapes; None for the product's defaults.
    """

    policy: str = "gorgo"
    seed: int = 0
    time_scale: float = 1.0
    minutes: float = 15.0
    profile: str = "gorgo-main"
    shape: ChatShape = GORGO_CHATS
    gorgo: tuple[tuple[str, float], ...] = ()
    weights: CostWeights = field(default_factory=CostWeights)
    interval_s: float | None = None


Bounds = dict[str, tuple[float, float]]
"""Lower and upper bound of each weight."""

Runs = dict[str, list[dict[str, float]]]
"""Numbers by contestant, one per seed."""


def sites_of(profile: str) -> list[Site]:
    """Return the three endpoints."""
    engine = load_profile(profile)
    blocks = engine.settings.num_blocks * engine.settings.block_size // _BLOCK_TOKENS
    settings = replace(engine.settings, num_blocks=blocks, block_size=_BLOCK_TOKENS)
    engine = replace(engine, settings=settings)
    return [Site(name=n, model="chat", engine=engine, link=link) for n, link in _LINKS.items()]


def arrivals_of(run: Run) -> list[Arrival]:
    """Return the trace, which is the same for all policies with the same seed."""
    drawn = chats(run.shape, generator(run.seed, "conversations"), run.minutes * 60.0)
    return [replace(arrival, at_s=arrival.at_s * run.time_scale) for arrival in drawn]


def policies_of(run: Run) -> dict[str, Policy]:
    """Return all policies that the run may use; `gorgo` gets the run's weights."""
    policies = build_policies(run.weights, {run.policy: {}, **_GORGOS_AIBRIX})
    # As published, the smallest score wins outright. Our picker gives near-ties to the less loaded
    # endpoint, which would hide the effect of a zero load weight.
    score = Gorgo(**dict(run.gorgo))
    policies["gorgo"] = Policy(name="gorgo", scorers=[(score, 1.0)], picker=ShuffledMaxScore())
    return policies


def gorgo_scorer(weights: Mapping[str, float]) -> Scorer:
    """Return GORGO's scorer with these weights."""
    return Gorgo(**weights)


def picker_of(run: Run) -> FleetSettings:
    """Return the settings of a run's picker."""
    settings = FleetSettings(policy=run.policy)
    if run.interval_s is None:
        return settings
    return replace(settings, scrape_interval_s=run.interval_s, probe_interval_s=run.interval_s)


def run_one(run: Run) -> dict[str, float]:
    """Run once; return the tally's numbers and `near_share`, the nearest endpoint's share."""
    return run_policies(run, policies_of(run))


def run_policies(
    run: Run,
    policies: dict[str, Policy],
    prepare: Callable[[VirtualFleet], None] = lambda _fleet: None,
) -> dict[str, float]:
    """Run with these policies, on a fleet changed by `prepare`; return what `run_one` returns."""
    fleet = VirtualFleet(sites_of(run.profile), picker_of(run), seed=run.seed, policies=policies)
    prepare(fleet)
    tally = Tally()
    counted_from_s = _UNCOUNTED_SHARE * run.minutes * 60.0 * run.time_scale

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if arrival.at_s >= counted_from_s:
            tally.add(arrival, exchange)

    replay_open(fleet, arrivals_of(run), ended)
    count = max(1, tally.by_endpoint.total())
    return tally.numbers() | {"near_share": tally.by_endpoint[NEAR] / count}


def on_seeds(base: Run, seeds: Sequence[int], **changed: Any) -> list[Run]:
    """Return the run for each seed, with these fields changed."""
    return [replace(base, seed=seed, **changed) for seed in seeds]


def by_policy(base: Run, policies: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Run]]:
    """Return the run for each seed, by policy."""
    return {policy: on_seeds(base, seeds, policy=policy) for policy in policies}


def run_all(runs: Mapping[str, Sequence[Run]], label: str) -> Runs:
    """Run every contestant on all cores."""
    cases = [(run,) for of_one in runs.values() for run in of_one]
    results = iter(sweep(run_one, cases, label=label))
    return {name: [next(results) for _ in of_one] for name, of_one in runs.items()}


def tuned_elsewhere(base: Run, seeds: Sequence[int], windows: int, label: str) -> list[Run]:
    """Return the run for each seed, with weights tuned on a separate trace."""
    training = on_seeds(base, [seed + TRAINING_SEEDS for seed in seeds])
    cases = [(run, PAPER_BOX, PAPER_INITIAL, windows) for run in training]
    weights = sweep(tuned, cases, label=f"{label}: tuning")
    return with_weights(on_seeds(base, seeds), weights)


def with_weights(runs: Sequence[Run], weights: Sequence[Mapping[str, float]]) -> list[Run]:
    """Return the runs, each with its own weights for the policy `gorgo`."""
    pairs = zip(runs, weights, strict=True)
    return [replace(run, gorgo=tuple(found.items())) for run, found in pairs]


def tuned(
    run: Run,
    bounds: Bounds,
    initial: dict[str, float],
    windows: int,
    objective: str = "ttft-and-e2e-p95",
) -> dict[str, float]:
    """Run laar's climb on the run's trace; return the best weights."""
    settings = TunerSettings(bounds=bounds, objective=objective, max_windows=windows, seed=run.seed)
    tuner = tune(
        lambda: arrivals_of(run),
        sites_of(run.profile),
        picker_of(run),
        settings,
        initial,
        seed=run.seed,
        policies=policies_of(run),
        scorer_of=gorgo_scorer,
    )
    return dict(tuner.best)
