"""A client's request as plain values, without any bytes of the wire format.

Most values created for every request, here and elsewhere, are not frozen dataclasses: freezing
triples the cost of creating one. Still, only three places change a complete request:
`laar.plugins.stored` sets the session of a stored answer, the stream drops parts of the prompt that
are no longer needed, and the record of the decision drops the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_OBJECTIVE_S = 3600.0
"""Longest accepted TTFT objective, since Envoy holds no request for longer, and highest accepted
price of a wrong answer."""

UPGRADE_REQUIRED = 426
"""Status of a WebSocket whose opening names no model (RFC 9110, section 15.5.22)."""


LIMITS = (
    *("max_completion_tokens", "max_tokens", "max_output_tokens"),
    *("max_new_tokens", "n_predict"),  # SGLang's and llama.cpp's names
)
"""Members that limit the tokens of an answer; the first given counts."""


SAMPLING = ("temperature", "top_k", "seed")
"""Members that can make answers reproducible."""


def is_reproducible(members: Mapping[str, Any]) -> bool:
    """Return whether a body, or part of it, makes a model give the same answer each time."""
    inner = members.get("sampling_params")  # in /inference/v1/generate
    given = inner if isinstance(inner, Mapping) else members
    greedy = given.get("temperature") in (0, "0") or given.get("top_k") in (1, "1")
    return greedy or given.get("seed") is not None


class Api(StrEnum):
    """Body format of a request: OTHER are engines' own; an OPAQUE request's body is not read."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    OTHER = "other"
    OPAQUE = "opaque"


TEXTS = frozenset((Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES))
"""Formats whose answers are texts, so that endpoints' answers can be compared."""

GENERATES: Mapping[Api, bool | None] = {
    **dict.fromkeys(Api, True),
    Api.EMBEDDINGS: False,
    Api.OPAQUE: None,
}
"""Whether requests of a format need an engine that generates text; None if that varies."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, read once from its headers and body.

    Args:
        id: the ``x-request-id``, from the client or from the picker.
        api: body format.
        model: model name in the client's request; empty if none.
        encodes: whether its path is for embeddings, scores or labels.
        spans: the prompt's text in the order in which the engine sees it: role markers, tools,
            texts, digests of images. Prefixes are hashed over these.
        question: text of the last user message, from which language and task are detected.
        marks: what else an engine may refuse it for: its body's members (`laar.protocol.marks`);
            None if they were not read while the body was here.
        chars: characters in all spans.
        tokens: length of a prompt that was sent as token ids; 0 if it must be estimated.
        longest_share: share of the prompt in its longest text; below 1 for a batch of texts, each
            of which is a prompt to the engine.
        stream: the client requested a streamed answer.
        max_tokens: limit on the answer; None when the client set none.
        answers: number of sequences that the engine generates at once.
        body_bytes: size of the body.
        body: the body, for readers outside the core; empty if there is none.
        digest: hash of the client's body, or of what else is known of it; 0 if nothing is.
        salt: ``cache_salt`` of the body, and the tenant; prefixes are shared only within a salt.
        tenant: fairness key of flow control.
        priority: priority of the objective that the client named; 0 if none. Requests below 0
            may be shed first.
        objective: name of that objective; empty if none.
        any_mode: its body may be changed, and does not say itself how to answer (`Modes`).
        reproducible: as far as its body shows, it gets the same answer from a model each time.
        tried: ``x-laar-tried-models`` as the client sent it: models that answered wrongly.
        companion_of: id of a request in flight for the same question, from ``x-laar-companion-of``;
            empty unless this is its companion.
        retries: ``x-laar-wrong-answer: retry``: its client asks again after a wrong answer.
        wrong_answer_s: seconds that a wrong answer costs its client, from the same header; None if
            the client did not say.
        task: ``x-laar-task``; empty to detect it.
        policy: ``x-laar-policy``; empty means the settings' policy.
        session: session it belongs to, from ``x-laar-session`` or the names that agents and APIs
            use; empty if none.
        named_by: the header or member that names the session; empty if none does.
        hints: other fields that may name it, with their values, if none is known to.
        parent: session that started this one, if the client says so.
        response_id: id of the stored answer that it continues or fetches; empty if none. Only the
            endpoint that gave that answer has it.
        conversation_id: id of the stored conversation that it refers to; ignored if no endpoint is
            known to store it.
        stays_as: all unread requests with this value go to the same endpoint; None: to any. It is
            the tenant whose files or batches are stored or listed, or the session of a WebSocket.
        needs_model: status of the refusal if it names no model and the endpoints serve several; 0
            if any of them may get it.
        ttft_objective_s: objective for the first token, from ``x-slo-ttft-ms``; None if not set.
        patience_s: how long the client says that it waits, in seconds; None if it doesn't.
        longest_hold_s: how long its Envoy waits for the decision; 0 if unknown.
        given: what ``x-laar-options`` says to plug-ins, by name; None if nothing.
        pool: pool that the gateway's route selects; empty means all endpoints.
        subset: addresses (with or without port) that the gateway allows; None means all.
        shadow: the decision is only recorded, and Envoy chooses the endpoint.
        first_token_seen: whether the picker will see the first token of the answer, which is then
            streamed and read as it passes.
        prefill_in_place: the answering endpoint must prefill, so no header may name a prefiller.
    """

    id: str
    api: Api
    model: str = ""
    encodes: bool = False
    spans: tuple[str, ...] = ()
    question: str = ""
    marks: Iterable[str] | None = field(default=(), compare=False)
    chars: int = 0
    tokens: int = 0
    longest_share: float = 1.0
    stream: bool = False
    max_tokens: int | None = None
    answers: int = 1
    body_bytes: int = 0
    body: bytes = b""
    digest: int = 0
    salt: str = ""
    tenant: str = ""
    priority: int = 0
    objective: str = ""
    any_mode: bool = False
    reproducible: bool = False
    tried: str = ""
    companion_of: str = ""
    retries: bool = False
    wrong_answer_s: float | None = None
    task: str = ""
    policy: str = ""
    session: str = ""
    named_by: str = ""
    hints: tuple[tuple[str, str], ...] = ()
    parent: str = ""
    response_id: str = ""
    conversation_id: str = ""
    stays_as: str | None = None
    needs_model: int = 0
    ttft_objective_s: float | None = None
    patience_s: float | None = None
    longest_hold_s: float = 0.0
    given: Mapping[str, str] | None = None
    pool: str = ""
    subset: frozenset[str] | None = None
    shadow: bool = False
    first_token_seen: bool = True
    prefill_in_place: bool = False

    @property
    def generates(self) -> bool | None:
        """Whether it needs an engine that generates text; None if that is unknown."""
        return False if self.encodes else GENERATES[self.api]
