"""llm-router's cloud benchmark in the lab: four A100s, sessions with one long system prompt.

Every run has a fresh fleet with empty caches; a seed gives all policies the same workload. Nothing
is learned from answers, which llm-router does not read.

The TTFT of llm-router is the time to an answer's last token: for real engines its `cmd/bench`
requests answers without streaming, because only those report cached tokens, and the first byte of
such an answer comes when it is complete. That is `e2e_*` here; `ttft_*` is the time to the first
token.

Two constants of each model are not in llm-router's code: the length of a short answer after the
first turn, and the share of long answers. They are fitted to one row of its tables, least-loaded at
4 sessions, where nothing queues: the length to the median latency, and the share to the request
rate. The rest is predicted.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import CostWeights
from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats
from laar.policies import build_policies
from laar.policies.pickers import ranks
from laar_lab.policies.llm_router import LONGEST, REASONS, PrefixAware
from laar_lab.sim.engine import EngineProfile, load_profile
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, converse, generator
from laar_lab.suite.fleets import workers
from laar_lab.tally import Tally
from laar_lab.workloads.sessions import RouterShape, router_sessions

SESSIONS = (4, 8, 12, 16, 24)
PROFILES = {"7B": "qwen2.5-7b-a100", "14B": "qwen2.5-14b-a100"}
WORKERS = 4
CLOUD_VALVE = 4
"""The valve's threshold in the cloud benchmark; the code's default is 8."""


ANSWERS = {"7B": (7, 0.05), "14B": (7, 0.2)}
"""Tokens of a short answer, and the share of long ones; see the module's docstring."""


class _FirstLeastLoaded:
    """llm-router's least-loaded: the first endpoint with the fewest requests in flight."""

    def score(self, view: View) -> Floats:
        return ranks(np.argsort(view.in_flight, kind="stable").tolist())


def run_sessions(policy: str, size: str, sessions: int, seed: int) -> dict[str, float]:
    """Run the cloud benchmark once; return the tally's numbers and `routing_hits`."""
    short_tokens, long_share = ANSWERS[size]
    shape = RouterShape(sessions=sessions, output_tokens=short_tokens, long_share=long_share)
    return run_on(load_profile(PROFILES[size]), WORKERS, policy, shape, seed, CLOUD_VALVE)


def run_on(
    engine: EngineProfile,
    count: int,
    policy: str,
    shape: RouterShape,
    seed: int,
    valve: int,
) -> dict[str, float]:
    """Run sessions on endpoints of one engine; `routing_hits` is the share routed by prefix."""
    scorer = PrefixAware(saturation_inflight=valve, shuffle_fallback=False)
    policies = build_policies(CostWeights())
    policies["llm-router"] = Policy(name="llm-router", scorers=[(scorer, 1.0)])
    policies["least-loaded"] = Policy(name="least-loaded", scorers=[(_FirstLeastLoaded(), 1.0)])
    fleet = VirtualFleet(
        workers(engine, count),
        FleetSettings(policy=policy, sample_answers=0.0),
        seed=seed,
        policies=policies,
    )
    prefixes = fleet.director.prefixes
    assert prefixes is not None
    prefixes.found.reuses[:] = 1  # llm-router takes for granted that engines reuse prefixes
    tally = Tally()
    sessions = router_sessions(shape, generator(seed, f"workload {shape.sessions}"))
    converse(fleet, sessions, tally.add)
    hits = scorer.reasons[LONGEST] + scorer.reasons[REASONS[1]]
    return tally.numbers() | {"routing_hits": hits / (shape.sessions * shape.turns)}
