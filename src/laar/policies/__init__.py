"""Policies by name: laar's own, policies of papers and other pickers, and plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from laar.core.cost import CostWeights
from laar.core.policy import Policy
from laar.errors import SettingError
from laar.policies.guarding import Guarded, guarded
from laar.policies.own import OWN
from laar.policies.profile import FilterUse, PickerUse, Profile, ScorerUse
from laar.policies.registry import Found, Kind, Parameters, find

__all__ = [
    "POLICY_NAMES",
    "FilterUse",
    "PickerUse",
    "Profile",
    "ScorerUse",
    "build_policies",
    "check_parameters",
    "check_profile",
]

POLICY_NAMES = tuple(OWN[Kind.POLICY])
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
        SettingError: a policy, part or parameter is unknown, a value is invalid, or a plug-in
            cannot be loaded or created.
    """
    given = given or {}
    check_parameters(given)
    policies = {
        name: _policy(find(OWN, Kind.POLICY, name), given.get(name, {}), weights)
        for name in dict.fromkeys([*POLICY_NAMES, *given])
    }
    for name, profile in (profiles or {}).items():
        try:
            check_profile(name, profile)
            policies[name] = _composed(name, profile, weights)
        except SettingError as fault:
            raise SettingError(str(fault), setting=f"routing.policies.{name}") from fault
    return policies


def _made(found: Found, given: Parameters, weights: CostWeights) -> Any:
    """Create a policy or a part; those named ``laar`` get the cost's weights."""
    of_cost = asdict(weights) if found.name == "laar" and not found.origin else {}
    return found.make(of_cost | dict(given))


def _policy(found: Found, given: Parameters, weights: CostWeights) -> Policy:
    made = _made(found, given, weights)
    if not isinstance(made, Policy):
        raise SettingError(
            f"{found.title}: returns a {type(made).__name__}; it must return a `laar.Policy`"
        )
    return guarded(made, found.name) if found.origin else made


def _composed(name: str, profile: Profile, weights: CostWeights) -> Policy:
    def made(kind: Kind, use: FilterUse | ScorerUse | PickerUse) -> Any:
        found = find(OWN, kind, use.name)
        part = _made(found, use.parameters, weights)
        return Guarded(part, use.name) if found.origin else part

    return Policy(
        name=name,
        filters=[made(Kind.FILTER, use) for use in profile.filters],
        scorers=[(made(Kind.SCORER, use), use.weight) for use in profile.scorers],
        picker=made(Kind.PICKER, profile.picker),
        knows_retries=any(use.name == "laar" for use in profile.scorers),
    )


def check_parameters(given: Mapping[str, Parameters]) -> None:
    """Reject parameters that no policy can be built with. The named plug-ins are imported.

    Raises:
        SettingError: a policy or parameter is unknown, a value is invalid, or a plug-in cannot be
            loaded.
    """
    for policy, values in given.items():
        found = find(OWN, Kind.POLICY, policy)
        found.check(values)
        for name, value in values.items() if not found.origin else ():
            if isinstance(value, int | float) and not 0 <= value <= 1e9:
                raise SettingError(f"{found.title}: `{name}` is {value}; give 0 to 1e9")


def check_profile(name: str, profile: Profile) -> None:
    """Reject a profile that cannot be built. The named plug-ins are imported.

    Raises:
        SettingError: the name is laar's own, there is no scorer, or as in `check_parameters`.
    """
    if name in POLICY_NAMES:
        raise SettingError(f"laar has a policy `{name}` of its own; choose another name")
    if not profile.scorers:
        raise SettingError("give at least one scorer")
    uses: list[tuple[Kind, FilterUse | ScorerUse | PickerUse]] = [
        *((Kind.FILTER, use) for use in profile.filters),
        *((Kind.SCORER, use) for use in profile.scorers),
        (Kind.PICKER, profile.picker),
    ]
    for kind, use in uses:
        find(OWN, kind, use.name).check(use.parameters)
