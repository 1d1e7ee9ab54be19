"""The policies by name: ours, the papers' as published, and the ones people already know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import Any

from laar.core.cost import CostWeights
from laar.core.interfaces import Scorer
from laar.core.outlook import Outlook
from laar.core.policy import Policy
from laar.errors import SettingError, unknown
from laar.policies.affinity import SessionAffinity
from laar.policies.aibrix import LeastRequest, PrefixCache
from laar.policies.chance import Random, RoundRobin
from laar.policies.gorgo import Gorgo
from laar.policies.gorgo_baselines import LeastLoad, SimpleSessionAffinity
from laar.policies.laar_paper import LaarPaper
from laar.policies.llm_d import LlmDDefault, LlmDGuide
from laar.policies.llm_router import PrefixAware
from laar.policies.load import LeastLoaded, LoadAware, PowerOfTwo
from laar.policies.ranking import ByChance
from laar.policies.sglang import CacheAware, Lmetric, SessionsFirst

__all__ = [
    "POLICY_NAMES",
    "Parameters",
    "build_policies",
    "check_parameters",
    "parameters_of",
    "parse_policy",
]

Parameters = Mapping[str, Mapping[str, float]]
"""What is set of some policies: values by parameter, by policy."""

_BASELINES: dict[str, Callable[..., Scorer]] = {
    "gorgo": Gorgo,
    "load-aware": LoadAware,
    "llm-d": LlmDDefault,
    "llm-d-guide": LlmDGuide,
    "llm-router": PrefixAware,
    "aibrix-prefix-cache": PrefixCache,
    "sglang-cache-aware": CacheAware,
    "smg": CacheAware,  # SGLang's gateway under its own name: the same rule and thresholds
    "vllm-router": SessionsFirst,
    "lmetric": Lmetric,
    "least-request": LeastRequest,
    "least-load": LeastLoad,
    "simple-session-affinity": SimpleSessionAffinity,
    "session-affinity": SessionAffinity,
    "least-loaded": LeastLoaded,
    "p2c": PowerOfTwo,
    "round-robin": RoundRobin,
    "random": Random,
}
_BY_CHANCE = {"load-aware", "llm-d"}
"""llm-d's picker breaks ties by chance, and an idle fleet is all ties."""


def build_policies(weights: CostWeights, given: Parameters | None = None) -> dict[str, Policy]:
    """Fresh policies, each with its own state.

    Args:
        weights: of the policy ``laar``.
        given: parameters of others (or of ``laar``) that are not at their defaults.

    Raises:
        SettingError: there is no such policy or parameter, or a value can't be one.
    """
    given = given or {}
    check_parameters(given)
    policies = {
        "laar": Policy(
            name="laar",
            scorers=[(Outlook(replace(weights, **given.get("laar", {}))), 1.0)],
            knows_retries=True,
        ),
        "laar-paper": Policy(name="laar-paper", scorers=[(LaarPaper(), 1.0)], knows_retries=True),
    }
    for name, make in _BASELINES.items():
        scorer = make(**given.get(name, {}))
        if name in _BY_CHANCE:
            scorer = ByChance(scorer)
        policies[name] = Policy(name=name, scorers=[(scorer, 1.0)])
    return policies


POLICY_NAMES = ("laar", "laar-paper", *_BASELINES)


def parameters_of(policy: str) -> dict[str, float]:
    """The numbers of a policy that can be set, and their defaults.

    Raises:
        SettingError: there is no such policy.
    """
    if policy not in POLICY_NAMES:
        raise SettingError(unknown("policy", policy, POLICY_NAMES))
    if policy == "laar":
        known: dict[str, Any] = {each.name: each.default for each in fields(CostWeights)}
        del known["in_flight_tokens"]  # of the published forms' cost; here it is learned
    elif policy == "laar-paper":
        known = {}
    else:
        known = {name: each.default for name, each in _settable(_BASELINES[policy]).items()}
    return {
        name: float(default)
        for name, default in known.items()
        if isinstance(default, (int, float)) and not isinstance(default, bool)
    }


def _settable(make: Callable[..., Scorer]) -> dict[str, Any]:
    return {
        name: each
        for name, each in signature(make).parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }


def check_parameters(given: Parameters) -> None:
    """Refuses what no policy can be built with.

    Raises:
        SettingError: there is no such policy or parameter, or a value is not 0 to a billion.
    """
    for policy, values in given.items():
        known = parameters_of(policy)
        for name, value in values.items():
            if name not in known:
                raise SettingError(f"policy `{policy}`: {unknown('parameter', name, known)}")
            if not 0 <= value <= 1e9:
                raise SettingError(f"policy `{policy}`: `{name}` is {value}; give 0 to 1e9")


def parse_policy(text: str) -> tuple[str, dict[str, float]]:
    """Reads a policy as command lines name it: `name`, or `name:parameter=value,...`.

    Raises:
        SettingError: as for `check_parameters`, or a value is no number.
    """
    name, _, rest = text.partition(":")
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, number = part.partition("=")
        try:
            values[key.strip()] = float(number)
        except ValueError:
            raise SettingError(
                f"policy `{text}`: `{part}` is not of the form parameter=number"
            ) from None
    check_parameters({name: values})
    return name, values
