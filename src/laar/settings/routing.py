"""Settings for choosing endpoints: policies, weights, estimates, health, flow control."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import orjson
from annotated_types import Ge, Le, MaxLen
from pydantic import Field, ValidationInfo, field_validator

from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings, Enforcement
from laar.declaring import Applies
from laar.errors import LaarError, SettingError
from laar.flow.settings import FlowSettings
from laar.health import HealthSettings
from laar.plugins.apart import ApartSettings
from laar.plugins.modes import ByModel, Members, ModesSettings
from laar.policies import Profile, build_plugins, build_policies
from laar.policies.registry import Parameters
from laar.prefix.index import MAX_BYTES
from laar.protocol.openai import read_body
from laar.protocol.stream import StreamSettings
from laar.request import Api
from laar.settings.section import Section, declared, part

MAX_POLICIES = 64
"""Maximum number of composed policies, since metrics are labeled by policy."""

_NAME = "[a-z0-9][a-z0-9._-]{0,63}"
_MEMBERS = "`chat: {reasoning_effort: low}`"


@declared(CostWeights)
@declared(DirectorSettings)
@declared(ModesSettings)
@declared(ApartSettings)
@declared(Enforcement)
@declared(StreamSettings, "list_models", "restore_names", "allow_policy_header")
@declared(StreamSettings, "conformance_headers", "gateway_lists")
class Routing(Section):
    """Choice of an endpoint for each request."""

    applies: ClassVar = Applies.AT_ONCE

    policies: Annotated[Mapping[str, Profile], MaxLen(MAX_POLICIES)] = Field(default={})
    """Policies composed of filters, weighted scorers and a picker, by name; see the guide to
    scorers."""
    baselines: Mapping[str, Mapping[str, object]] = Field(default={})
    """Parameters of other projects' policies, by policy and name, such as
    `llm-d: {prefix_weight: 5}`. The defaults are the authors' published values; the concepts
    page lists them. x-laar-policy may select a policy from an installed package only if it is named
    here or in `policy`."""

    plugins: Annotated[Mapping[str, Mapping[str, object]], Applies.AFTER_RESTART] = Field(
        default={}
    )
    """Plug-ins of installed packages and their parameters, by name, in the order in which they are
    asked, after laar's own that are not named; see the guide to plug-ins."""

    @field_validator("policies")
    @classmethod
    def _composed(cls, policies: Mapping[str, Profile]) -> Mapping[str, Profile]:
        for name, profile in policies.items():
            if not re.fullmatch(_NAME, name):
                raise ValueError(f"`{name[:100]}` is not a policy name: give {_NAME}")
            try:
                build_policies(CostWeights(), profiles={name: profile})
            except SettingError as fault:
                raise ValueError(f"{name}: {fault}") from None
        return policies

    @field_validator("plugins")
    @classmethod
    def _installed(cls, plugins: Mapping[str, Parameters]) -> Mapping[str, Parameters]:
        try:
            build_plugins(plugins)
        except SettingError as fault:
            raise ValueError(str(fault)) from None
        return plugins

    @field_validator("policy", check_fields=False)
    @classmethod
    def _policy_is_known(cls, policy: str, info: ValidationInfo) -> str:
        composed, given = info.data.get("policies"), info.data.get("baselines")
        if composed is not None and given is not None and policy not in {**composed, **given}:
            try:
                build_policies(CostWeights(), {policy: {}})
            except SettingError as fault:
                raise ValueError(str(fault)) from None
        return policy

    @field_validator("baselines")
    @classmethod
    def _known(cls, baselines: Mapping[str, Parameters]) -> Mapping[str, Parameters]:
        if "laar" in baselines:
            raise ValueError("the weights of `laar` are settings in `routing`; set those")
        try:
            build_policies(CostWeights(), baselines)
        except SettingError as fault:
            raise ValueError(str(fault)) from None
        return baselines

    @field_validator("modes", check_fields=False)
    @classmethod
    def _adds_members(cls, modes: ByModel) -> ByModel:
        for model, of in modes.items():
            for name, mode in of.items():
                if not re.fullmatch(_NAME, name):
                    raise ValueError(f"{model}: `{name[:100]}` is not a mode's name: give {_NAME}")
                if not mode.members:
                    raise ValueError(f"{model}.{name}: give members of bodies, by API: {_MEMBERS}")
                for api, members in mode.members.items():
                    try:
                        same = _reads_alike(api, members)
                    except (LaarError, TypeError) as fault:
                        raise ValueError(f"{model}.{name}.{api}: {fault}") from None
                    if not same:
                        raise ValueError(
                            f"{model}.{name}.{api}: a mode may not set the model, the prompt, or "
                            "other members that laar reads, except a limit of tokens"
                        )
        return modes

    @property
    def given(self) -> dict[str, Parameters]:
        """Return the parameters of the configured policies that are not composed, by name."""
        name = self.director.policy
        return ({} if name in self.policies else {name: {}}) | {**self.baselines}

    @property
    def weights(self) -> CostWeights:
        """Return the cost weights."""
        return part(CostWeights, self)

    @property
    def enforcement(self) -> Enforcement:
        """Return the settings that select which decisions to enforce."""
        return part(Enforcement, self)

    @property
    def director(self) -> DirectorSettings:
        """Return the director's settings."""
        return part(DirectorSettings, self)

    @property
    def asking(self) -> ModesSettings:
        """Return the modes in which models may be asked."""
        return part(ModesSettings, self)

    @property
    def of_plugins(self) -> tuple[object, ...]:
        """Return the settings of plug-ins."""
        return self.asking, part(ApartSettings, self)


def _reads_alike(api: Api, members: Members) -> bool:
    """Return whether laar reads the same from a body with these members, but for its answer."""
    message = {"role": "user", "content": "\0"}
    prompt: dict[str, object] = {"messages": [message], "prompt": "\0", "input": "\0"}
    bare, body = (read_body(api, orjson.dumps(of)) for of in (prompt, {**prompt, **members}))
    return bare == replace(body, chars=bare.chars, max_tokens=None, reproducible=False)


class Accuracy(Section):
    """Accuracy and speed of the models."""

    applies: ClassVar = Applies.AFTER_RESTART

    capability: Annotated[Path | None, Applies.AT_ONCE] = None
    """Artifact from `laar fit` or `laar calibrate`, reloaded whenever it changes. Without it, every
    model is assumed equally good until outcomes are reported and equally fast until answers show
    its speed: laar routes by cache, queue and round trip."""
    outcomes_token_file: Path | None = None
    """File with the bearer token required to report outcomes; a file because /config shows the
    settings. Without it, outcomes are accepted only on loopback."""


@declared(StreamSettings, "by_tenant")
class Prefix(Section):
    """Estimation of the endpoints' prefix caches."""

    applies: ClassVar = Applies.AFTER_RESTART

    max_bytes: Annotated[int, Ge(1 << 20), Le(64 << 30)] = MAX_BYTES
    """Memory limit for the index in bytes. 128 MiB covers the caches of about 100 endpoints with
    500,000 tokens each. When full, the oldest entries of the fullest endpoint are evicted."""


@declared(HealthSettings)
class HealthSection(Section):
    """Failing endpoints: learning from outcomes, and the circuit breaker."""

    @property
    def breaker(self) -> HealthSettings:
        """Return the circuit breaker's settings."""
        return part(HealthSettings, self)


@declared(FlowSettings)
@declared(StreamSettings, "tenant_header")
class Flow(Section):
    """Flow control: requests wait in slack order while the fleet is full.

    Even when it is off, turns of sessions wait until the caches have room for their contexts;
    `flow.max_hold_s: 0` disables that.
    """

    applies: ClassVar = Applies.AT_ONCE

    enabled: Annotated[bool, Applies.AFTER_RESTART] = False
    """Whether requests wait in the picker while every endpoint is full. Otherwise each is sent
    immediately and waits in an engine, in order of arrival, except turns of sessions whose contexts
    do not fit in any cache."""

    @property
    def admission(self) -> FlowSettings:
        """Return the admission settings."""
        return part(FlowSettings, self)
