"""A decision, how its request ended, and the settings that decisions are made by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from laar.core.cost import MIN_PROBABILITY
from laar.core.endpoints import Floats
from laar.core.engines import Began
from laar.core.filters import FilterSettings
from laar.core.interfaces import View
from laar.core.request import Request
from laar.declaring import FIXED, Applies
from laar.health import Attempt

__all__ = ["NEW_MODEL", "Completion", "Decision", "DirectorSettings", "Retries"]


Retries = Literal["as-scored", "new-model"]
NEW_MODEL: Retries = "new-model"
"""Of `DirectorSettings.retries`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings:
    """How the director chooses."""

    section: ClassVar = "routing"
    applies: ClassVar = Applies.AT_ONCE

    policy: str = "laar"
    """Policy of requests that name none in x-laar-policy."""
    allow_policy_header: bool = True
    """Whether x-laar-policy may choose another policy for one request."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"auto": ()})
    """Virtual model names and the models each stands for; an empty list is all models."""
    fallbacks: Annotated[int, Ge(0), Le(8)] = 2
    """Endpoints named to Envoy behind the first, for its own retries. Two survive a rolling
    restart; each adds an address to a header."""
    quadratic_tokens: Annotated[float | None, Ge(1024), Le(1e9)] = None
    """Prompt length in tokens at which attention costs as much as all the rest of a prefill
    (parameters / (layers * hidden): about 60,000 for Llama 3 8B, 110,000 for 70B). Long prompts in
    flight then weigh what they cost, not what they count. None: by count, as LAAR and GORGO publish
    it."""
    retries: Retries = "as-scored"
    """Who says where a retry goes. as-scored: the policy; laar and laar-paper price the models
    tried, others know nothing of them. new-model: any policy leaves a model that was tried for when
    no other can take the request, and answers x-laar-exhausted once all were."""
    answer_value_s: Annotated[float | None, Gt(0), Le(1e6)] = None
    """What a correct answer is worth, in seconds: x-laar-exhausted is answered as soon as no
    further attempt is expected to give one for less (seconds / P(correct) after these failures).
    None: only once every model was tried."""
    max_times_tried: Annotated[int, FIXED] = 10
    """How often one model counts as tried, so that costs stay finite numbers."""
    filters: FilterSettings = field(default_factory=FilterSettings)

    @property
    def quadratic(self) -> float:
        """`quadratic_tokens` to divide by: infinite where there are none."""
        return math.inf if self.quadratic_tokens is None else self.quadratic_tokens


@dataclass(slots=True, kw_only=True)
class Decision:
    """Where a request goes, why, and what was reserved for it.

    `address` first, then `fallbacks`, all of which answer to the name the body will carry.
    `rewrite` is that name when the body has to be spliced. `tried` is what the client sends back
    on a retry, and `exhausted` says that it then names every model that could serve the request, or
    that no other is worth its seconds.
    `served` says that Envoy named the endpoint that serves: `address` is it. `engine_priority` goes
    into the body where the endpoint's engine takes one; lower runs first, and None leaves the
    client's own. `settings` are those it
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
