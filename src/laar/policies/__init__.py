"""Policies by name: laar's own, those composed in the settings, and plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from laar.core.cost import CostWeights
from laar.core.plugin import Plugin
from laar.core.policy import Policy
from laar.errors import SettingError
from laar.plugins import own as own_plugins
from laar.policies.own import OWN
from laar.policies.profile import PartUse, PickerUse, Profile, ScorerUse
from laar.policies.registry import Parameters, PartKind, find

__all__ = [
    "POLICY_NAMES",
    "PartUse",
    "PickerUse",
    "Profile",
    "ScorerUse",
    "build_plugins",
    "build_policies",
]

POLICY_NAMES = tuple(OWN[PartKind.POLICY])
"""laar's own policies."""


def build_policies(
    weights: CostWeights,
    given: Mapping[str, Parameters] | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> dict[str, Policy]:
    """Create all of laar's policies and the other named ones, each with its own state.

    Args:
        weights: weights of the policy and the scorer ``laar``, unless their parameters differ.
        given: parameters that differ from their defaults, by policy. A policy from an installed
            package is built only if it is named here.
        profiles: policies composed of filters, scorers and a picker, by name.

    Raises:
        SettingError: a policy, part or parameter is unknown, a value is invalid, a plug-in cannot
            be loaded or created, or a profile has no scorer or the name of one of laar's policies.
    """
    given = given or {}
    policies = {
        name: _made(PartKind.POLICY, name, given.get(name, {}), weights)
        for name in dict.fromkeys([*POLICY_NAMES, *given])
    }
    for name, profile in (profiles or {}).items():
        policies[name] = _composed(name, profile, weights)
    return policies


def build_plugins(given: Mapping[str, Parameters]) -> list[Plugin]:
    """Create laar's plug-ins, and then those that are named, with their parameters.

    Raises:
        SettingError: a plug-in or parameter is unknown, or it cannot be loaded or created.
    """
    laars = {PartKind.PLUGIN: {plugin.name: type(plugin) for plugin in own_plugins()}}
    named = [find(laars, PartKind.PLUGIN, name).make(of) for name, of in given.items()]
    return [*(plugin for plugin in own_plugins() if plugin.name not in given), *named]


def _made(kind: PartKind, name: str, given: Parameters, weights: CostWeights) -> Any:
    """Create a policy or a part; those named ``laar`` get the cost's weights."""
    found = find(OWN, kind, name)
    of_cost = asdict(weights) if name == "laar" and not found.origin else {}
    return found.make(of_cost | dict(given))


def _composed(name: str, profile: Profile, weights: CostWeights) -> Policy:
    if name in POLICY_NAMES:
        raise SettingError(f"laar has a policy `{name}` of its own; choose another name")
    if not profile.scorers:
        raise SettingError("give at least one scorer")
    picker = profile.picker
    return Policy(
        name=name,
        filters=[_made(PartKind.FILTER, of.name, of.parameters, weights) for of in profile.filters],
        scorers=[
            (_made(PartKind.SCORER, of.name, of.parameters, weights), of.weight)
            for of in profile.scorers
        ],
        picker=_made(PartKind.PICKER, picker.name, picker.parameters, weights),
        knows_retries=any(of.name == "laar" for of in profile.scorers),
    )
