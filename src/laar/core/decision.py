"""A decision, the settings that it was made with, and how its request ended."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from laar.accuracy.retry import WRONG_ANSWER_S
from laar.core.eligible import Eligible
from laar.core.interfaces import View
from laar.core.plugin import Parts
from laar.declaring import Applies
from laar.fleet.endpoints import Floats
from laar.fleet.membership import PLAIN, Way
from laar.health import Attempt
from laar.health.explained import Shown
from laar.request import MAX_OBJECTIVE_S, Request
from laar.speeds.engines import Began

if TYPE_CHECKING:
    from laar.prefix.index import Receipt

Retries = Literal["as-scored", "new-model"]
NEW_MODEL: Retries = "new-model"
"""Value of `DirectorSettings.retries`: prefer a model that has not been tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings:
    """Settings for the director."""

    applies: ClassVar = Applies.AT_ONCE

    policy: str = "laar"
    """Policy for requests without an x-laar-policy header."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"auto": ()})
    """Virtual model names, each with its models; an empty list means all models."""
    fallbacks: Annotated[int, Ge(0), Le(8)] = 2
    """Number of additional endpoints given to laar's own Envoys for their retries. Two are enough
    for a rolling restart; each adds an address to a header."""
    retries: Retries = "as-scored"
    """How a retry is placed. as-scored: by the policy's scores; among laar's own policies, only
    `laar` considers which models were tried. new-model: every policy reuses a tried model only when
    no other can take the request, and x-laar-exhausted is sent once all have been tried."""
    wrong_answer_s: Annotated[float | None, Ge(0), Le(MAX_OBJECTIVE_S)] = WRONG_ANSWER_S
    """Seconds that a wrong answer costs a client that does not ask again; x-laar-wrong-answer may
    give another value. A model whose answers are right one time in a hundred more often may take a
    hundredth of this longer. Clients that ask again, by that header or by sending the models tried,
    pay for a wrong answer with the next attempt instead; null treats all clients so."""
    max_waiting: Annotated[float, Ge(0)] = 128.0
    """Number of requests waiting in the engine above which the endpoint is excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Which decisions to enforce; the others (shadow mode) are only made and recorded."""

    applies: ClassVar = Applies.AT_ONCE

    mode: Literal["enforce", "shadow"] = "enforce"
    """`enforce` sends requests where the picker chose. `shadow` only records decisions; Envoy's
    own load balancing, or another picker's header, chooses an endpoint with the model."""
    enforce_share: Annotated[float, Ge(0), Le(1)] = 1.0
    """In mode `enforce`, share of requests whose decision is enforced; the others are in shadow
    mode. Sampled by session (or by request if there is none), so no session changes mode. Decisions
    on aliases are always enforced, since engines do not accept these names."""

    @property
    def share(self) -> float:
        """Share of requests whose decision is enforced; others pass as if there were no picker."""
        return self.enforce_share if self.mode == "enforce" else 0.0

    @property
    def draw(self) -> Callable[[str], bool] | None:
        """Selects the requests whose decisions are enforced; None if all are."""
        return None if self.share >= 1.0 else self.enforces

    def enforces(self, key: str) -> bool:
        """Return whether to enforce decisions on requests of the session (or with the id) `key`.

        The choice is a hash of the key, so no session alternates between enforced and shadow, and a
        session enforced at one share is enforced at every larger share.
        """
        return zlib.crc32(key.encode()) < self.share * 2**32


@dataclass(slots=True, kw_only=True)
class InFlight:
    """A request between its decision and its end; updated by the director and flow control.

    Args:
        slot: slot of the serving endpoint: the chosen one, until Envoy reports another.
        address: address of that endpoint.
        model: model of that endpoint, or its variant.
        variant_of: that endpoint's model, if `model` is a variant of it; else empty.
        tried: the models that the client sends back as tried on a retry.
        exhausted: `tried` lists every model that could serve the request.
        receipt: the prompt's entry in the prefix index.
        traced_as: its id in the engine's KV events, which clients do not see; empty if none.
        began: the engines' record of the request.
        attempt: health's record of the attempt at the serving endpoint.
        read: health needs the answer to be read.
        failed: endpoints that Envoy tried before the serving one.
        unjudged: slots and health's records of these attempts, kept until the end of the request
            shows whether it was at fault.
        served: Envoy reported the serving endpoint.
        answering: the first byte of the answer was seen; the prefill is over.
        released: its answer is complete, and no load any more.
        settled: the request has ended.
        admitted: flow control counts the request until it ends.
    """

    slot: int
    address: str
    model: str
    variant_of: str = ""
    tried: tuple[str, ...] = ()
    exhausted: bool = False
    receipt: Receipt | None = None
    traced_as: str = ""
    began: Began | None = None
    attempt: Attempt | None = None
    read: bool = False
    failed: tuple[str, ...] = ()
    unjudged: list[tuple[int, Attempt | None]] = field(default_factory=list)
    served: bool = False
    answering: bool = False
    released: bool = False
    settled: bool = False
    admitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The endpoint that a request goes to, and why. `flight` is the request's state from then on.

    Args:
        id: identifies the decision in outcome reports; empty for a preview.
        request: the request.
        settings: settings in effect at the time; explanations use them even after a change.
        policy: name of the policy.
        reason: why this endpoint was chosen; one of a small set of codes.
        now: time of the decision, on the director's clock.
        slot: slot of the chosen endpoint.
        address: address of the chosen endpoint.
        rank: its data-parallel rank, which is passed to the engine; None if it has no ranks.
        way: how it is reached; fallbacks share its path and key.
        fallbacks: addresses of the next best, in order; all serve the body's model name.
        model: model of the chosen endpoint, or its variant.
        rewrite: the model name to write into the body; None to leave the body as it is.
        tried: the models of this attempt and of the earlier ones.
        exhausted: if this attempt fails, the client should stop.
        tokens: length of the prompt in the chosen model's tokens.
        uncached_tokens: prompt tokens that the endpoint itself has to prefill.
        parts: what plug-ins add to it, by plug-in.
        view: the view that the scorers saw; None if the body is not read.
        scores: scores of the view's candidates.
        eligible: which of them could be chosen.
        position: position of the chosen candidate in the view.
        engine_priority: priority for an engine that accepts one; lower runs first. None keeps the
            client's.
        trial: the endpoint is excluded, and this request tests whether it has recovered.
        left_out: by slot, why health excluded an endpoint.
        once: its body is in doubt, or similar requests often fail at several endpoints, so this one
            has no fallbacks.
        alone: no other endpoint serves the model, whatever its health.
        flight: the state of the request between its decision and its end.
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
    tried: tuple[str, ...] = ()
    exhausted: bool = False
    tokens: float = 0.0
    uncached_tokens: float = 0.0
    parts: Parts = field(default_factory=Parts)
    view: View | None = None
    scores: Floats | None = None
    eligible: Eligible = field(default_factory=dict)
    position: int = 0
    rank: int | None = None
    way: Way = PLAIN
    engine_priority: int | None = None
    trial: bool = False
    once: bool = False
    alone: bool = False
    left_out: Mapping[int, str] | None = None
    flight: InFlight

    @property
    def believed_share(self) -> float:
        """Share of the prompt, in 0..1, that the engine should report as cached."""
        if self.view is None:
            return 0.0
        held = self.view.held_tokens.item(self.position)
        held += sum(part.elsewhere_tokens for part in self.parts.values())
        return min(held / max(self.tokens, 1.0), 1.0)


@dataclass(slots=True, kw_only=True)
class Completion:
    """How a request ended.

    Args:
        status: HTTP status of the endpoint's answer; None if there was no answer.
        cause: ``complete``, ``disconnect``, ``reset`` or ``error``; ``hidden`` if the gateway does
            not show answers.
        latency_s: seconds from the decision to the end.
        ttft_s: seconds from the decision to the first byte of the answer's body; None if the answer
            was not sampled.
        prompt_tokens: the engine's own count, if the answer was read.
        completion_tokens: the engine's count for the answer, if the answer was read.
        cached_tokens: prompt tokens found in the engine's cache, if it reports them.
        shown: what the whole answer shows, for comparison, if it was read.
        error: an error was found in an answer with a success status, if it was read.
    """

    status: int | None
    cause: str
    latency_s: float
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    shown: Shown | None = None
    error: InitVar[bool] = False
    ok: bool = field(init=False)
    """Whether the endpoint accepted the request, and its answer is neither an error nor useless.

    All that learns from a completion, except health, uses this rather than the status.
    `Director.settle` clears it if health found the answer useless."""

    def __post_init__(self, error: bool) -> None:
        self.ok = self.status is not None and self.status < 400 and not error
