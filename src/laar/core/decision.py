"""A decision, how its request ended, and the settings that decisions are made by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laar.core.cost import MIN_PROBABILITY
from laar.core.endpoints import Floats
from laar.core.engines import Began
from laar.core.filters import FilterSettings
from laar.core.interfaces import View
from laar.core.request import Request
from laar.health import Attempt

__all__ = ["Completion", "Decision", "DirectorSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings:
    """How the director chooses.

    Args:
        policy: name of the policy for requests that name none.
        aliases: virtual model names; each stands for the models listed, all of them when empty.
        fallbacks: endpoints named to Envoy after the first, for its own retries.
        allow_policy_header: whether ``x-laar-policy`` may choose another policy.
        max_times_tried: how often one model counts as tried, so that costs stay finite numbers.
        filters: thresholds of the filters.
        quadratic_tokens: prompt length at which attention costs as much as all the rest of a
            prefill; infinite: c(m) for each token, whatever the length.
    """

    policy: str = "laar"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"auto": ()})
    fallbacks: int = 2
    allow_policy_header: bool = True
    max_times_tried: int = 10
    filters: FilterSettings = field(default_factory=FilterSettings)
    quadratic_tokens: float = math.inf


@dataclass(slots=True, kw_only=True)
class Decision:
    """Where a request goes, why, and what was reserved for it.

    `address` first, then `fallbacks`, all of which answer to the name the body will carry.
    `rewrite` is that name when the body has to be spliced. `tried` is what the client sends back
    on a retry, and `exhausted` says that it then names every model that could serve the request.
    `served` says that Envoy named the endpoint that serves: `address` is it. `engine_priority` goes
    into the body where the endpoint's engine takes one; lower runs first. `settings` are those it
    was made by: what was reserved goes back by the same, whatever was changed meanwhile. `account`
    is what whoever watches keeps of it until the request ends. `trial` says that the endpoint is
    out, and this request finds out whether it is back; `attempt` is health's record of it, and
    `read` asks for the answer to be read. `failed` are the endpoints that Envoy tried before, and
    `left_out` says by slot why health left candidates out.
    """

    id: str
    request: Request
    settings: DirectorSettings
    policy: str
    reason: str
    now: float
    slot: int
    address: str
    fallbacks: tuple[str, ...]
    model: str
    rewrite: str | None
    tried: tuple[str, ...]
    exhausted: bool
    tokens: float
    uncached_tokens: float
    view: View | None
    scores: Floats | None
    position: int
    chain: Any
    receipt: Any
    weights_version: int = 0
    answering: bool = False
    served: bool = False
    settled: bool = False
    engine_priority: int | None = None
    account: Any = None
    began: Began | None = None
    trial: bool = False
    read: bool = False
    attempt: Attempt | None = None
    failed: tuple[str, ...] = ()
    left_out: Mapping[int, str] | None = None

    @property
    def ttft_s(self) -> float | None:
        """The expected seconds to the first token; None when the policy does not price."""
        if self.view is None or self.view.terms is None:
            return None
        return float(self.view.terms.all_ttft_s[self.position])

    @property
    def expected_s(self) -> float | None:
        """The expected seconds to a correct answer, by itself; None where nothing is priced."""
        if self.view is None or self.view.terms is None:
            return None
        terms, at = self.view.terms, self.position
        sure = float(terms.all_answers[at]) * float(terms.probability[at])
        return float(terms.latency_s[at]) / max(sure, MIN_PROBABILITY)

    @property
    def cost_s(self) -> float | None:
        """What it was chosen by; None when the policy does not price."""
        if self.view is None or self.view.terms is None:
            return None
        return float(self.view.terms.cost_s[self.position])


@dataclass(slots=True, kw_only=True)
class Completion:
    """How a request ended.

    Args:
        status: HTTP status of the endpoint's answer; None when none came.
        cause: ``complete``, ``disconnect``, ``reset`` or ``error``.
        latency_s: from the decision to the end.
        ttft_s: from the decision to the first byte of the answer's body, where it was sampled.
        prompt_tokens: the engine's own count, where the answer was read.
        completion_tokens: the same for the answer.
        cached_tokens: prompt tokens the engine found in its cache, where it says so.
        response_id: what the engine keeps the answer by, where it keeps answers (Responses API).
        error: the answer began well and held an error, where it was read.
    """

    status: int | None
    cause: str
    latency_s: float
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    response_id: str = ""
    error: bool = False

    @property
    def ok(self) -> bool:
        """Whether the endpoint accepted the request, and sent no error instead of an answer."""
        return self.status is not None and self.status < 400 and not self.error
