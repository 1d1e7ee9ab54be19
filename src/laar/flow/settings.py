"""The settings of flow control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from laar.core.request import Request
from laar.declaring import Applies
from laar.flow.item import Limits
from laar.flow.saturation import Saturation


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How requests are admitted."""

    applies: ClassVar = Applies.AT_ONCE

    objectives_s: Mapping[str, Annotated[float, Gt(0), Le(3600)]] = field(default_factory=dict)
    """Objectives for the time to first token, in seconds, by the name in
    x-gateway-inference-objective. A request's x-slo-ttft-ms takes precedence."""
    objective_base_s: Annotated[float, Ge(0), Le(3600)] = 1.0
    """Objective of a request that sets none, in seconds: `objective_base_s` plus `objective_factor`
    times its prefill on an idle engine."""
    objective_factor: Annotated[float, Ge(1), Le(1000)] = 5.0
    """Factor on the prefill time in the objective of a request that sets none (see
    `objective_base_s`). Users accept a second; a factor of five gives a long prompt enough
    slack to yield."""
    long_tokens: Annotated[int, Ge(1), Le(1 << 30)] = 8192
    """Uncached prompt tokens above which a request is long. While short requests wait, an endpoint
    does not get a second long one. The Medha paper's short requests have at most 8K tokens."""
    limits: Limits = field(default_factory=Limits)
    saturation: Saturation = field(default_factory=Saturation)

    def objective_of(self, request: Request, work_s: float) -> float:
        """Return a request's TTFT objective in seconds; `work_s` is its prefill time."""
        objective_s = request.ttft_objective_s
        if objective_s is None:
            objective_s = self.objectives_s.get(request.objective)
        if objective_s is None:
            objective_s = self.objective_base_s + self.objective_factor * work_s
        return objective_s
