"""llm-router's cloud benchmark in the lab: four A100, sessions with one long system prompt.

A fresh fleet for each policy and seed, the workload the same for all; caches start warm for other
prompts, hence cold for these. Nothing is learned from answers: its router does not read them.
"""

from __future__ import annotations

from laar.core.cost import CostWeights
from laar.core.policy import Policy
from laar.lab.engine import EngineProfile, load_profile
from laar.lab.fleet import FleetSettings, LinkProfile, Site, VirtualFleet, converse, generator
from laar.lab.tally import Tally
from laar.lab.workloads.sessions import RouterShape, router_sessions
from laar.policies import build_policies
from laar.policies.llm_router import LONGEST, REASONS, PrefixAware

__all__ = ["PROFILES", "SESSIONS", "WORKERS", "run_on", "run_sessions"]

SESSIONS = (4, 8, 12, 16, 24)
PROFILES = {"7B": "qwen2.5-7b-a100", "14B": "qwen2.5-14b-a100"}
WORKERS = 4
CLOUD_VALVE = 4
"""The threshold of the cloud benchmark; the code's default is 8."""


def run_sessions(policy: str, size: str, sessions: int, seed: int) -> dict[str, float]:
    """One run of the cloud benchmark; the tally's numbers and `routing_hits`."""
    engine = load_profile(PROFILES[size])
    return run_on(engine, WORKERS, policy, RouterShape(sessions=sessions), seed, CLOUD_VALVE)


def run_on(
    engine: EngineProfile,
    workers: int,
    policy: str,
    shape: RouterShape,
    seed: int,
    valve: int,
    shuffle: bool = True,
) -> dict[str, float]:
    """Sessions on so many of an engine; `routing_hits` is the share routed by a prefix."""
    sites = [
        Site(name=f"worker-{n}", model="model", engine=engine, link=LinkProfile(rtt_s=0.0004))
        for n in range(workers)
    ]
    scorer = PrefixAware(saturation_inflight=valve, shuffle=shuffle)
    policies = build_policies(CostWeights())
    policies["llm-router"] = Policy(name="llm-router", scorers=[(scorer, 1.0)])
    fleet = VirtualFleet(
        sites, FleetSettings(policy=policy, sample_answers=0.0), seed=seed, policies=policies
    )
    tally = Tally()
    sessions = router_sessions(shape, generator(seed, f"workload {shape.sessions}"))
    converse(fleet, sessions, tally.add)
    hits = scorer.reasons[LONGEST] + scorer.reasons[REASONS[1]]
    return tally.numbers() | {"routing_hits": hits / (shape.sessions * shape.turns)}
