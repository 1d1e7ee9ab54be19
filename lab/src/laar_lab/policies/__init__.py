"""Policies of other routers for comparison, which laar loads as a plug-in through entry points.

laar builds the policies named in its settings (`routing.policy`, `routing.baselines`), and the lab
those named for a run. Defaults are the authors'; each module names its source and date.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from laar import Policy, Scorer
from laar_lab.policies.aibrix import LeastRequest, PrefixCache
from laar_lab.policies.dynamo import Dynamo
from laar_lab.policies.gorgo import Gorgo
from laar_lab.policies.gorgo_baselines import LeastLoad, SimpleSessionAffinity
from laar_lab.policies.laar_paper import LaarPaper
from laar_lab.policies.llm_d_latency import llm_d_latency as llm_d_latency
from laar_lab.policies.llm_router import PrefixAware
from laar_lab.policies.sglang import CacheAware, Lmetric, PowerOfTwo, SessionsFirst, Vetoed


def _alone(
    name: str, make: Callable[..., Scorer], *, knows_retries: bool = False
) -> Callable[..., Policy]:
    """Return a function that makes a policy with this scorer alone, from its parameters."""

    @wraps(make)
    def policy(**given: object) -> Policy:
        return Policy(name=name, scorers=[(make(**given), 1.0)], knows_retries=knows_retries)

    return policy


def _vllm_router(
    *,
    cache_threshold: float = 0.3,
    balance_abs_threshold: float = 64.0,
    balance_rel_threshold: float = 1.5,
) -> SessionsFirst:
    rule = CacheAware(
        cache_threshold=cache_threshold,
        balance_abs_threshold=balance_abs_threshold,
        balance_rel_threshold=balance_rel_threshold,
    )
    return SessionsFirst(rule, rule.out_of_balance)


def _smg_veto(*, veto_waiting: float = 8.0, veto_kv_usage: float = 0.8) -> Vetoed:
    return Vetoed(CacheAware(), veto_waiting=veto_waiting, veto_kv_usage=veto_kv_usage)


gorgo = _alone("gorgo", Gorgo)
laar_paper = _alone("laar-paper", LaarPaper, knows_retries=True)
llm_router = _alone("llm-router", PrefixAware)
aibrix_prefix_cache = _alone("aibrix-prefix-cache", PrefixCache)
sglang_cache_aware = _alone("sglang-cache-aware", CacheAware)
smg = _alone("smg", CacheAware)  # SGLang's gateway: the same rule and thresholds
smg_veto = _alone("smg-veto", _smg_veto)
vllm_router = _alone("vllm-router", _vllm_router)
sticky_least_loaded = _alone("sticky-least-loaded", lambda: SessionsFirst(LeastRequest()))
dynamo = _alone("dynamo", Dynamo)
lmetric = _alone("lmetric", Lmetric)
p2c = _alone("p2c", PowerOfTwo)
least_request = _alone("least-request", LeastRequest)
least_load = _alone("least-load", LeastLoad)
simple_session_affinity = _alone("simple-session-affinity", SimpleSessionAffinity)
