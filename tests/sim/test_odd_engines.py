"""Engines that collapse at a batch size, preempt, or go on after an abort, one in a fleet."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost
from laar_lab.sim.fleet import FleetSettings, Site, VirtualFleet, generator, request_of
from laar_lab.suite.fleets import nothing
from laar_lab.workloads.shared_prompts import Questions, questions

COST = LinearCost(
    seconds_per_token=1e-4,
    prefill_overhead_s=0.01,
    decode_s_per_token=0.02,
    decode_s_per_sequence=3e-4,
)
HEALTHY = EngineSettings(num_blocks=2000, block_size=128, max_num_seqs=32)
LOAD = Questions(
    requests_per_s=4.0, question_log=(6.5, 0.8), output_log=(5.5, 0.7), max_output_tokens=1500
)
COUNT, MINUTES = 4, 1.0


def drawn(kind: str, rng: random.Random) -> tuple[EngineSettings, float]:
    """Return the settings of an odd engine, and the share of clients that leave."""
    match kind:
        case "collapses":
            above, factor = rng.randint(1, 12), rng.uniform(2.0, 10.0)
            return replace(HEALTHY, collapse_above=above, collapse_factor=factor), 0.0
        case "preempts":  # the longest request takes some 80 blocks, most take 10
            return replace(HEALTHY, num_blocks=rng.randint(90, 140) // rng.choice((1, 2))), 0.0
        case _:
            late_s = rng.choice((5.0, 30.0, math.inf))
            return replace(HEALTHY, abort_late_s=late_s), rng.uniform(0.3, 0.8)


@dataclass
class Run:
    """What a run showed; only answers to requests after its first fifth count."""

    fleet: VirtualFleet
    took_s: list[float] = field(default_factory=list)
    went: Counter[str] = field(default_factory=Counter)

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.took_s))


def run(engines: list[EngineSettings], policy: str, leaving: float, seed: int) -> Run:
    """Send the load of a seed, whose clients partly leave before they have their answers."""
    sites = [
        Site(name=f"e{n}:1", model="m", engine=EngineProfile(name="e", cost=COST, settings=of))
        for n, of in enumerate(engines)
    ]
    settings = FleetSettings(policy=policy)
    fleet = VirtualFleet(sites, settings, seed=seed, assessor=nothing(sites))
    seen, rng, clock = Run(fleet), random.Random(seed), fleet.clock

    def ask(number, arrival, leaves_s):
        def ended(exchange):
            if arrival.at_s > 0.2 * 60.0 * MINUTES:
                seen.took_s.append(exchange.latency_s if exchange.status == 200 else 60.0)

        exchange = fleet.send(request_of(number, arrival), arrival.prompt, ended)
        seen.went[exchange.address] += 1
        if leaves_s < math.inf:
            clock.at(clock.now + leaves_s, fleet.cancel, exchange)

    for number, arrival in enumerate(questions(LOAD, generator(seed, "load"), 60.0 * MINUTES)):
        leaves_s = rng.uniform(0.2, 6.0) if rng.random() < leaving else math.inf
        clock.at(arrival.at_s, ask, number, arrival, leaves_s)
    clock.run()
    return seen


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["collapses", "preempts", "aborts late"])
def test_one_odd_engine_costs_little_beside_none_and_beside_least_loaded(kind, seed, figure):
    odd, leaving = drawn(kind, random.Random(f"{kind} {seed}"))
    ours, plain, without = (
        run(engines, policy, leaving, seed)
        for engines, policy in (
            ([odd, *[HEALTHY] * (COUNT - 1)], "laar"),
            ([odd, *[HEALTHY] * (COUNT - 1)], "least-loaded"),
            ([HEALTHY] * (COUNT - 1), "laar"),
        )
    )
    what = f"an engine that {kind}, drawn {seed}"
    figure(f"{what}: time beside the fleet without it", ours.mean_s / without.mean_s, "1.1")
    figure(f"{what}: time beside least-loaded", ours.mean_s / plain.mean_s, "1.02")
    figure(f"{what}: its share of {COUNT}", ours.went["e0:1"] / ours.went.total(), ".25")
    assert ours.mean_s < 1.15 * without.mean_s, "it begins knowing nothing of its engines"
    assert ours.mean_s < 1.05 * plain.mean_s
    if kind == "collapses":
        assert ours.fleet.director.engines.paces.rest[0] > 1.3, "it is known to be slow"
    preempted, by_plain = (each.fleet.host("e0:1").load().preemptions for each in (ours, plain))
    assert preempted <= by_plain
