"""The settings of flow control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from laar.declaring import Applies
from laar.request import Request


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
    order: Annotated[Literal["lars", "fcfs"], Applies.AFTER_RESTART] = "lars"
    """Order of the queue: `lars` by relative slack, `fcfs` by arrival, for comparison."""
    max_waiting: Annotated[int, Ge(0), Le(1_000_000)] = 10_000
    """Maximum number of waiting requests; more than that get 429. Each costs about 20 KiB plus its
    body. With 10,000, a dispatch takes about 100 us."""
    max_held_bytes: Annotated[int, Ge(0), Le(64 << 30)] = 512 << 20
    """Maximum total size of the bodies of waiting requests, each counted twice: as received and as
    parsed. Requests beyond it get 429."""
    patience: Annotated[float, Ge(0), Le(1000)] = 3.0
    """A request expires with 503 after waiting this many times its objective, but not before
    `min_hold_s` and not after `max_hold_s`."""
    min_hold_s: Annotated[float, Ge(0), Le(3580)] = 5.0
    """Seconds that every request may wait before it expires, unless `max_hold_s` is less. Long
    enough for a long prefill."""
    max_hold_s: Annotated[float, Applies.AFTER_RESTART, Ge(0), Le(3580)] = 60.0
    """Longest wait in seconds. Then a waiting request expires, even while no endpoint is known (a
    fleet scaled to zero), and a session's turn is sent even if there is no room for its context.
    0 disables waiting. Behind laar's Envoy a turn may wait for longer, up to `laar envoy
    --longest-hold`, if its client says so or its kind is seen to bear it. Other gateways must
    wait for as long as this, or they send each held request elsewhere."""
    max_prefill_s: Annotated[float, Gt(0), Le(3600)] = 2.0
    """Seconds of prefill in flight, as learned, that fill an endpoint. The default keeps its batch
    full between two decisions, and is short enough for the queue's order to matter. A request is
    counted until its first token is seen. If its answer is not streamed or not read
    (`bodies.sample_answers`), the seconds left of its prefill are estimated from elapsed time."""
    max_requests: Annotated[int, Ge(1), Le(100_000)] = 256
    """Number of requests that fill an endpoint, like vLLM's --max-num-seqs."""

    def objective_of(self, request: Request, work_s: float) -> float:
        """Return a request's TTFT objective in seconds; `work_s` is its prefill time."""
        if request.ttft_objective_s is not None:
            return request.ttft_objective_s
        usual_s = self.objective_base_s + self.objective_factor * work_s
        return self.objectives_s.get(request.objective, usual_s)
