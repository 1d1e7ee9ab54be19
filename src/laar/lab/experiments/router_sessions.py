"""llm-router's cloud benchmark in the lab: four A100, sessions with one long system prompt.

A fresh fleet for each policy and seed, the workload the same for all; caches start warm for other
prompts, hence cold for these. Nothing is learned from answers: its router does not read them.
"""

from __future__ import annotations

from laar.core.cost import CostWeights
from laar.core.policy import Policy
from laar.lab.engine import load_profile
from laar.lab.fleet import FleetSettings, LinkProfile, Site, VirtualFleet, converse, generator
from laar.lab.tally import Tally
from laar.lab.workloads.sessions import RouterShape, router_sessions
from laar.policies import build_policies
from laar.policies.llm_router import LONGEST, REASONS, PrefixAware

__all__ = ["PROFILES", "SESSIONS", "run_sessions"]

SESSIONS = (4, 8, 12, 16, 24)
PROFILES = {"7B": "qwen2.5-7b-a100", "14B": "qwen2.5-14b-a100"}
WORKERS = 4
CLOUD_VALVE = 4
"""The threshold of the cloud benchmark; the code's default is 8."""


def run_sessions(
    policy: str, size: str, sessions: int, seed: int, valve: int = CLOUD_VALVE, shuffle: bool = True
) -> dict[str, float]:
    """One run; the tally's numbers and `routing_hits`, the share routed by a prefix."""
    profile = load_profile(PROFILES[size])
    sites = [
        Site(name=f"worker-{n}", model=size, engine=profile, link=LinkProfile(rtt_s=0.0004))
        for n in range(WORKERS)
    ]
    scorer = PrefixAware(saturation_inflight=valve, shuffle=shuffle)
    policies = build_policies(CostWeights())
    policies["llm-router"] = Policy(name="llm-router", scorers=[(scorer, 1.0)])
    fleet = VirtualFleet(
        sites, FleetSettings(policy=policy, sample_answers=0.0), seed=seed, policies=policies
    )
    tally = Tally()
    shape = RouterShape(sessions=sessions)
    conversations = router_sessions(shape, generator(seed, f"workload {sessions}"))
    converse(fleet, conversations, tally.add)
    hits = scorer.reasons[LONGEST] + scorer.reasons[REASONS[1]]
    return tally.numbers() | {"routing_hits": hits / (sessions * shape.turns)}
