"""When requests wait, and in which order (Medha at the picker)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from laar.flow.admission import FlowSettings
from laar.flow.item import Limits
from laar.flow.saturation import Saturation
from laar.settings.section import Applies, Section

__all__ = ["Flow"]


class Flow(Section):
    """Flow control: requests wait in slack order while the fleet is full."""

    applies: ClassVar = Applies.AT_ONCE

    enabled: Annotated[bool, Applies.AFTER_RESTART] = Field(
        False,
        description="Whether requests wait here while every endpoint is full. Off, each is sent at "
        "once and waits in an engine, in order of arrival.",
    )
    objectives_s: dict[str, Annotated[float, Field(gt=0, le=3600)]] = Field(
        default={},
        description="Seconds to the first token that a class of requests is meant to have, by the "
        "name in x-gateway-inference-objective. x-slo-ttft-ms goes before it.",
    )
    objective_base_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="Seconds of the objective of a request that has none: this ...",
    )
    objective_factor: float = Field(
        5.0,
        ge=1,
        le=1000,
        description="... and this many times its prefill alone. A second is what people wait for, "
        "and "
        "five times leaves a long prompt slack to give.",
    )
    tenant_header: str = Field(
        "x-gateway-inference-fairness-id",
        min_length=1,
        max_length=128,
        pattern=r"^[a-z0-9-]+$",
        description="Request header whose value names the tenant; turns between tenants go by "
        "tokens. In "
        "lower case. Whoever sets it chooses whom to be, so let the gateway write it.",
    )
    long_tokens: int = Field(
        8192,
        ge=1,
        le=1 << 30,
        description="Uncached prompt tokens above which a request is long: while short ones wait, "
        "an endpoint gets no second long one. The paper's short requests end at 8K.",
    )
    order: Annotated[Literal["lars", "fcfs", "edf", "lrs", "srpt"], Applies.AFTER_RESTART] = Field(
        "lars",
        description="Who goes first: relative slack, or another order to compare with.",
    )
    max_waiting: int = Field(
        10_000,
        ge=0,
        le=1_000_000,
        description="Requests that may wait; 429 beyond. Each costs some 20 KiB and its body, and "
        "10,000 keep a dispatch at some 100 us.",
    )
    max_held_bytes: int = Field(
        512 << 20,
        ge=0,
        le=64 << 30,
        description="Memory for the bodies of those that wait, each counted twice: as it came and "
        "as it was read. 429 beyond.",
    )
    patience: float = Field(
        3.0,
        ge=0,
        le=1000,
        description="A request is beyond hope, and gets a 503, after waiting this many times its "
        "objective ...",
    )
    min_hold_s: float = Field(
        5.0,
        ge=0,
        le=3580,
        description="... but not before this many seconds: one long prefill may pass meanwhile ...",
    )
    max_hold_s: float = Field(
        60.0,
        ge=0,
        le=3580,
        description="... and never after this many, which also hold requests while no endpoint is "
        "known (a fleet scaled to zero). Keep it at or under `laar envoy --longest-hold`, whose "
        "default this is: Envoy sends a request elsewhere after that.",
    )
    max_prefill_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="Seconds of prefill in flight at an endpoint, by c(m), above which it is full. "
        "Enough to keep its batch full between two decisions, little enough for the order to "
        "matter. "
        "A request counts until its first token is seen; where answers are not streamed or not "
        "read (`bodies.sample_answers`), by a clock that those seen and the readings correct.",
    )
    max_requests: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Requests at an endpoint above which it is full; vLLM's --max-num-seqs.",
    )
    max_kv_usage: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Share of the KV cache in use above which an endpoint is full: it is about to "
        "preempt.",
    )
    stale_after_s: float = Field(
        3.0,
        gt=0,
        le=3600,
        description="Seconds after which a reading fills no endpoint any more; three missed "
        "scrapes. The own counters still do.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Flow:
        if self.min_hold_s > self.max_hold_s:
            raise ValueError("`min_hold_s` must not be above `max_hold_s`")
        return self

    @property
    def admission(self) -> FlowSettings:
        """The admission's part."""
        return FlowSettings(
            limits=Limits(
                max_waiting=self.max_waiting,
                max_held_bytes=self.max_held_bytes,
                patience=self.patience,
                min_hold_s=self.min_hold_s,
                max_hold_s=self.max_hold_s,
                order=self.order,
            ),
            saturation=Saturation(
                max_prefill_s=self.max_prefill_s,
                max_requests=self.max_requests,
                max_kv_usage=self.max_kv_usage,
                stale_after_s=self.stale_after_s,
            ),
            objectives_s=self.objectives_s,
            objective_base_s=self.objective_base_s,
            objective_factor=self.objective_factor,
            long_tokens=self.long_tokens,
        )
