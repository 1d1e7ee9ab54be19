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

__all__ = ["FlowSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How requests are admitted."""

    section: ClassVar = "flow"
    applies: ClassVar = Applies.AT_ONCE

    objectives_s: Mapping[str, Annotated[float, Gt(0), Le(3600)]] = field(default_factory=dict)
    """Seconds to the first token that a class of requests is meant to have, by the name in
    x-gateway-inference-objective. x-slo-ttft-ms goes before it."""
    objective_base_s: Annotated[float, Ge(0), Le(3600)] = 1.0
    """Seconds of the objective of a request that has none: this ..."""
    objective_factor: Annotated[float, Ge(1), Le(1000)] = 5.0
    """... and this many times its prefill alone. A second is what users wait for, and five times
    leaves a long prompt slack to give."""
    long_tokens: Annotated[int, Ge(1), Le(1 << 30)] = 8192
    """Uncached prompt tokens above which a request is long: while short ones wait, an endpoint gets
    no second long one. The paper's short requests end at 8K."""
    limits: Limits = field(default_factory=Limits)
    saturation: Saturation = field(default_factory=Saturation)

    def objective_of(self, request: Request, work_s: float) -> float:
        """Seconds to the first token that a request is meant to have; `work_s` is its prefill."""
        objective_s = request.ttft_objective_s
        if objective_s is None:
            objective_s = self.objectives_s.get(request.objective)
        if objective_s is None:
            objective_s = self.objective_base_s + self.objective_factor * work_s
        return objective_s
