"""The policies by name: ours, the papers' as published, and the ones people already know."""

from __future__ import annotations

from laar.core.cost import CostWeights
from laar.core.policy import ExpectedTime, Policy
from laar.policies.affinity import SessionAffinity
from laar.policies.aibrix import LeastRequest, PrefixCache
from laar.policies.chance import Random, RoundRobin
from laar.policies.gorgo import Gorgo
from laar.policies.gorgo_baselines import LeastLoad, SimpleSessionAffinity
from laar.policies.laar_paper import LaarPaper
from laar.policies.llm_d import LlmDDefault
from laar.policies.llm_router import PrefixAware
from laar.policies.load import LeastLoaded, LoadAware
from laar.policies.ranking import ByChance
from laar.policies.sglang import CacheAware, Lmetric

__all__ = ["POLICY_NAMES", "build_policies"]


def build_policies(weights: CostWeights) -> dict[str, Policy]:
    """Fresh policies, each with its own state. `weights` are those of the policy ``laar``."""
    policies = [
        Policy(name="laar", scorers=[(ExpectedTime(weights), 1.0)], knows_retries=True),
        Policy(name="laar-paper", scorers=[(LaarPaper(), 1.0)], knows_retries=True),
        Policy(name="gorgo", scorers=[(Gorgo(), 1.0)]),
        # llm-d's picker breaks ties by chance, and an idle fleet is all ties.
        Policy(name="load-aware", scorers=[(ByChance(LoadAware()), 1.0)]),
        Policy(name="llm-d", scorers=[(ByChance(LlmDDefault()), 1.0)]),
        Policy(name="llm-router", scorers=[(PrefixAware(), 1.0)]),
        Policy(name="aibrix-prefix-cache", scorers=[(PrefixCache(), 1.0)]),
        Policy(name="sglang-cache-aware", scorers=[(CacheAware(), 1.0)]),
        Policy(name="lmetric", scorers=[(Lmetric(), 1.0)]),
        Policy(name="least-request", scorers=[(LeastRequest(), 1.0)]),
        Policy(name="least-load", scorers=[(LeastLoad(), 1.0)]),
        Policy(name="simple-session-affinity", scorers=[(SimpleSessionAffinity(), 1.0)]),
        Policy(name="session-affinity", scorers=[(SessionAffinity(), 1.0)]),
        Policy(name="least-loaded", scorers=[(LeastLoaded(), 1.0)]),
        Policy(name="round-robin", scorers=[(RoundRobin(), 1.0)]),
        Policy(name="random", scorers=[(Random(), 1.0)]),
    ]
    return {policy.name: policy for policy in policies}


POLICY_NAMES = tuple(build_policies(CostWeights()))
