"""How an endpoint is chosen: policies, weights, what is believed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from laar.core.cost import TUNABLE, CostWeights
from laar.core.decision import DirectorSettings
from laar.core.filters import FilterSettings
from laar.errors import SettingError
from laar.policies import POLICY_NAMES, check_parameters
from laar.settings.section import Applies, Section
from laar.tuning import OBJECTIVES, TunerSettings

__all__ = ["Accuracy", "Prefix", "Routing", "Tuning"]


def _policy_name(value: str) -> str:
    if value not in POLICY_NAMES:
        raise ValueError(f"no policy is called {value!r}; choose one of {', '.join(POLICY_NAMES)}")
    return value


PolicyName = Annotated[str, AfterValidator(_policy_name)]

_DEFAULTS = CostWeights()


class Routing(Section):
    """How an endpoint is chosen."""

    applies: ClassVar = Applies.AT_ONCE

    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow` decides and records, and lets Envoy's own balancing, or another "
        "picker's header, stand: to look before anything is at stake.",
    )
    enforce_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="In the mode `enforce`, the share of requests whose decision counts; the rest "
        "is shadowed. Drawn by session, or by request where there is none, so that a session does "
        "not flap.",
    )
    policy: PolicyName = Field(
        "laar", description="Policy of requests that name none in x-laar-policy."
    )
    allow_policy_header: bool = Field(
        True, description="Whether x-laar-policy may choose another policy for one request."
    )
    aliases: dict[str, tuple[str, ...]] = Field(
        default={"auto": ()},
        description="Virtual model names and the models each stands for; an empty list is all "
        "models.",
    )
    fallbacks: int = Field(
        2,
        ge=0,
        le=8,
        description="Endpoints named to Envoy behind the first, for its own retries. Two survive a "
        "rolling restart; each adds an address to a header.",
    )
    k_rtt: float = Field(
        _DEFAULTS.k_rtt,
        ge=0,
        le=1000,
        description="Weight of the round trip in the cost; 1: seconds are seconds.",
    )
    k_queue: float = Field(
        _DEFAULTS.k_queue,
        ge=0,
        le=1000,
        description="Weight of the seconds that a request would wait behind prompts, or for a "
        "place in a full engine.",
    )
    k_delay: float = Field(
        _DEFAULTS.k_delay,
        ge=0,
        le=1000,
        description="Weight of the seconds that a request costs others: those that are there, and "
        "those who come while its prompt is read. 0 looks at the request alone.",
    )
    weights_file: Path | None = Field(
        None,
        description="Weights that `laar tune --export` wrote, read again whenever the file "
        "changes; they take the place of k_rtt, k_queue and k_delay and are never changed by "
        "serving. While the tuner is on none of the four applies before a restart: they are where "
        "its climb began.",
    )
    baselines: dict[str, dict[str, float]] = Field(
        default={},
        description="Parameters of the policies that come from elsewhere, by policy and by name, "
        "such as `sglang-cache-aware: {balance_abs_threshold: 8}`. What is not given is as its "
        "authors publish it; the page on concepts lists them.",
    )
    retry_penalty: float = Field(
        100.0,
        ge=1,
        le=1e6,
        description="Factor on a model's cost for each time it was tried already: it is used again "
        "only when nothing else is left.",
    )
    max_failures: int = Field(
        3,
        ge=1,
        le=1000,
        description="Probes failed in a row before an endpoint is passed over. One can be chance, "
        "three in a row are not.",
    )
    max_waiting: float = Field(
        128,
        ge=0,
        description="Requests waiting in the engine above which the endpoint is passed over.",
    )
    max_kv_usage: float = Field(
        0.98,
        gt=0,
        le=1,
        description="Share of the KV cache in use above which the endpoint is passed over: "
        "beyond it engines preempt.",
    )
    stale_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Seconds after which a reading says nothing about saturation any more; ten "
        "missed "
        "scrapes.",
    )

    quadratic_tokens: float | None = Field(
        None,
        ge=1024,
        le=1e9,
        description="Prompt length in tokens at which attention costs as much as all the rest of a "
        "prefill (parameters / (layers * hidden): about 60,000 for Llama 3 8B, 110,000 for 70B). "
        "Long "
        "prompts in flight then weigh what they cost, not what they count. None: by count, as LAAR "
        "and GORGO publish it.",
    )

    @field_validator("baselines")
    @classmethod
    def _known(cls, baselines: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        if "laar" in baselines:
            raise ValueError("the weights of `laar` are settings of their own; set those")
        try:
            check_parameters(baselines)
        except SettingError as fault:
            raise ValueError(str(fault)) from None
        return baselines

    @property
    def weights(self) -> CostWeights:
        """The weights of the cost; `load` has put those of the file in their place."""
        weights = {name: getattr(self, name) for name in TUNABLE}
        return CostWeights(
            **weights,
            retry_penalty=self.retry_penalty,
        )

    @property
    def enforced(self) -> float:
        """The share of requests whose decision counts."""
        return self.enforce_share if self.mode == "enforce" else 0.0

    @property
    def director(self) -> DirectorSettings:
        """The director's part."""
        return DirectorSettings(
            policy=self.policy,
            aliases=self.aliases,
            fallbacks=self.fallbacks,
            allow_policy_header=self.allow_policy_header,
            quadratic_tokens=math.inf if self.quadratic_tokens is None else self.quadratic_tokens,
            filters=FilterSettings(
                max_failures=self.max_failures,
                max_waiting=self.max_waiting,
                max_kv_usage=self.max_kv_usage,
                stale_s=self.stale_s,
            ),
        )


class Accuracy(Section):
    """What is known of the models."""

    applies: ClassVar = Applies.AFTER_RESTART

    capability: Annotated[Path | None, Applies.AT_ONCE] = Field(
        None,
        description="Artifact of `laar fit`, read again whenever it changes. Without one every "
        "model counts as equally good and equally fast until outcomes are reported, and laar "
        "routes by cache, queue and round trip.",
    )
    online: bool = Field(
        True,
        description="Whether reported outcomes (POST /outcomes, gRPC) correct the artifact. False "
        "to route by the artifact alone; nothing can be reported then.",
    )
    prior_weight: float = Field(
        50.0,
        ge=1,
        le=1e6,
        description="What the artifact's word on a cell weighs, in outcomes; about what a cell was "
        "fitted on. Where the model's other cells contradict the artifact it falls, to a sixteenth "
        "at the least.",
    )
    half_life_s: float = Field(
        86_400.0,
        ge=60,
        le=1e8,
        description="Seconds after which a reported outcome counts half. A day: a model behind a "
        "name changes rarely, its traffic with the hours.",
    )
    cap_per_hour: float = Field(
        200.0,
        ge=2,
        le=1e6,
        description="Outcomes that one model's cell takes in any hour. 200 against a prior of 50: "
        "the truth wins within the hour, a burst of lies does not.",
    )
    tasks: tuple[str, ...] = Field(
        (),
        max_length=1000,
        description="Tasks that clients may name in x-laar-task, besides the artifact's. Of others "
        "each tenant may name 32 in use, since every name takes room from all; the rest counts as "
        "not named.",
    )
    outcomes_token_file: Path | None = Field(
        None,
        description="File with the bearer token that outcomes must be sent with. A file, since the "
        "settings are shown on /config. Without one outcomes are taken on loopback only, over HTTP "
        "as over gRPC.",
    )
    state_file: Path | None = Field(
        None,
        description="JSON file that keeps what was learned across restarts. None: a restart begins "
        "with the artifact again.",
    )
    state_interval_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="Seconds between two saves of the state; what a crash can cost.",
    )


class Prefix(Section):
    """What is believed of the endpoints' prefix caches."""

    applies: ClassVar = Applies.AFTER_RESTART

    enabled: bool = Field(True, description="Whether cached prefixes count in the cost.")
    by_tenant: Annotated[bool, Applies.AT_ONCE] = Field(
        False,
        description="Whether a prefix that one tenant sent counts as unknown for all others "
        "(flow.tenant_header names the tenant). True where tenants don't trust each other: what "
        "they are told and how fast they are served then says nothing about others' prompts. Give "
        "engines a `cache_salt` for each tenant too. False by default: tenants often share a "
        "system prompt.",
    )
    max_bytes: int = Field(
        128 << 20,
        ge=1 << 20,
        le=64 << 30,
        description="Memory for the index; 128 MiB holds the caches of about 100 endpoints with "
        "500,000 "
        "tokens each. Beyond it the oldest entries of the fullest endpoint go.",
    )


class Tuning(Section):
    """The hill-climb over the cost's weights, on live traffic."""

    applies: ClassVar = Applies.AFTER_RESTART

    enabled: bool = Field(
        False,
        description="Whether the picker climbs. Off by default: a climb is an experiment on users. "
        "Tune, export, and serve the file frozen (routing.weights_file).",
    )
    objective: str = Field(
        "e2e-p95",
        description="What is made small. Whole answers by default: every request has that time, "
        "while first tokens are only seen of answers that are read (bodies.sample_answers).",
    )
    window: int = Field(128, description="Requests that one set of weights is measured on.")
    max_windows: int = Field(
        1000, ge=1, le=1_000_000, description="Windows after which the climb ends."
    )
    bounds: dict[str, tuple[float, float]] = Field(
        default=TUNABLE, description="Floor and cap of each weight that is tuned."
    )
    state_file: Path | None = Field(
        None, description="JSON file that keeps the climb across restarts. None: it begins anew."
    )
    state_interval_s: float = Field(
        60.0, ge=1, le=86_400, description="Seconds between two saves of the state."
    )

    @model_validator(mode="after")
    def _usable(self) -> Tuning:
        unknown = set(self.bounds) - set(TUNABLE)
        if unknown:
            raise ValueError(f"bounds: {min(unknown)} is none of {', '.join(TUNABLE)}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: choose one of {', '.join(OBJECTIVES)}")
        try:
            _ = self.climb
        except SettingError as fault:
            raise ValueError(str(fault)) from None
        return self

    @property
    def climb(self) -> TunerSettings:
        """The tuner's part."""
        return TunerSettings(
            bounds=self.bounds,
            objective=self.objective,
            window=self.window,
            max_windows=self.max_windows,
        )
