"""Names of the headers that laar reads and writes; parsing of request headers.

Names in the endpoint-picker protocol follow its public contract; laar's start with ``x-laar-``.
Control headers are for the picker only and are removed before the request is forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

from laar.plugins import own
from laar.protocol.patience import PATIENCE_HEADERS, patience_of
from laar.protocol.reserved import HARMLESS_HEADERS, reserved_headers
from laar.protocol.sessions import (
    AGENT_HEADERS,
    NAMELESS,
    PARENT_HEADERS,
    SESSION,
    SESSION_HEADERS,
    UNNAMED,
    Named,
    name_of,
    parent_of_headers,
    session_of_headers,
)
from laar.request import MAX_OBJECTIVE_S

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
FAIRNESS = "x-gateway-inference-fairness-id"
OBJECTIVE = "x-gateway-inference-objective"
REWRITE = "x-gateway-model-name-rewrite"

POOL = "xds.route_metadata.filter_metadata.laar.pool"
"""Envoy attribute, not a header: the route's metadata that names the pool."""

PATIENCE = "x-laar-patience-s"
"""Metadata key, sent with the destination: how long the endpoint may stay silent, as one of the
values below. A route matches it; without it, Envoy's limits apply."""

SILENCE_S = 600
"""Maximum at any time, for each of these routes. Ten minutes of decoding: some tool parsers hold a
call's arguments back until they are complete, and an agent may write a long file
(https://github.com/vllm-project/vllm/issues/50604)."""

BEGINS_S = (5, 10, 30)
"""Maximum until the response headers. After that, the request is hedged to the next endpoint, and
the first response headers win."""

RETRY_ON = "x-envoy-retry-on"
RETRIED_STATUSES = "x-envoy-retriable-status-codes"
MAX_RETRIES = "x-envoy-max-retries"
RETRY_HEADERS = (RETRY_ON, RETRIED_STATUSES, MAX_RETRIES)
"""Metadata keys, sent with the destination, from which laar's routes make headers that extend
Envoy's retry policy (`laar.protocol.stream.attempts`)."""

TRIED = "x-laar-tried-models"
TASK = "x-laar-task"
COMPANION_OF = "x-laar-companion-of"
"""The `REQUEST_ID` of a request in flight for the same question, whose companion this one is."""
WRONG_ANSWER = "x-laar-wrong-answer"
"""What a wrong answer costs the client: seconds, or `RETRY` if it then asks again."""
RETRY = "retry"
OPTIONS = "x-laar-options"
"""What a client says to plug-ins: NAME=VALUE, separated by commas."""
POLICY = "x-laar-policy"
CONTEXT = "x-laar-context"
TTFT_OBJECTIVE = "x-slo-ttft-ms"
REQUEST_ID = "x-request-id"
ANSWERED_IDS = (REQUEST_ID, "request-id")
"""Headers of a refusal with the request's id: those that OpenAI's and Anthropic's clients read."""

MODEL = "x-laar-model"
ENDPOINT = "x-laar-endpoint"
REASON = "x-laar-reason"
FAILED_OPEN = "failed-open"
"""Value of `REASON` on answers from endpoints that no picker chose."""
DECISION_ID = "x-laar-decision-id"
EXHAUSTED = "x-laar-exhausted"
IGNORED = "x-laar-ignored"
COST_MS = "x-laar-cost-ms"
TTFT_MS = "x-laar-ttft-ms"
HELD_MS = "x-laar-held-ms"
OVERHEAD_US = "x-laar-overhead-us"
MODE = "x-laar-mode"
RETRY_AFTER = "retry-after"
NOT_AGAIN = ("x-should-retry", "false")
"""Tells OpenAI's and Anthropic's clients not to repeat a request by themselves, as they do any 5xx.
"""

PRIORITIES = ("x-vllm-priority", "x-override-priority")
"""The request's priority in vLLM and in SGLang, lower values first; overrides the body's."""

RANK = "x-data-parallel-rank"
"""The data-parallel rank of vLLM or SGLang that serves the request."""

SESSION_ID = "x-session-id"
"""A session id for vLLM, which adds it to the KV events of the request's blocks."""

CREDENTIALS = ("authorization", "x-api-key", "api-key")
"""Headers with the credentials that engines check: the client's own or the engine's key."""

TICKET = "x-laar-ticket"
"""Set with the destination for gateways other than laar's own, which may ask several times for one
request: a later question carries it. Nobody can guess it, and it is void once the answer begins."""

UNCOMPRESSED = ("accept-encoding", "identity")
"""Header of requests whose answers laar may read. Without it, engines may compress them."""

PATH = "x-laar-path"
"""Metadata key: the path without query, for an engine with a different base path."""

SET_BY_ROUTES = (
    *(*PRIORITIES, RANK, SESSION_ID),
    *(name for plugin in own() for name in plugin.sends),
    *CREDENTIALS,
    *RETRY_HEADERS,
)
"""Headers that the picker sets through metadata and routes."""

GIVEN = tuple(name for plugin in own() for name in plugin.reads)
"""Headers that plug-ins read."""

LLM_D = {
    FAIRNESS: "x-llm-d-inference-fairness-id",
    OBJECTIVE: "x-llm-d-inference-objective",
    REWRITE: "x-llm-d-model-name-rewrite",
    TTFT_OBJECTIVE: "x-llm-d-slo-ttft-ms",
}
"""Names used by llm-d since release 0.9; they take precedence over the older names."""

ORIGINAL_PATHS = ("x-original-path", "x-forwarded-path")
"""Headers with the client's path, from gateways that rewrite it."""

TEST_SELECTION = "test-epp-endpoint-selection"
TEST_SELECTED = "x-conformance-test-selected-endpoint"
TEST_SERVED = "x-conformance-test-served-endpoint"
"""Headers of the Gateway API Inference Extension's conformance tests."""


def is_own(name: str) -> bool:
    """Return whether only the picker or Envoy may set this response header.

    Many clients and gateways do not tell underscores from hyphens.
    """
    name = name.replace("_", "-")
    of_envoy = name.startswith(("x-laar-", "x-envoy-"))  # an outer Envoy obeys some of these
    return of_envoy or name in (SERVED, TEST_SELECTED, TEST_SERVED)


CONTROL_HEADERS = frozenset(
    (
        *(*LLM_D.values(), DESTINATION, SERVED, SUBSET, FAIRNESS, OBJECTIVE, REWRITE, TRIED),
        *(COMPANION_OF, WRONG_ANSWER, OPTIONS, TASK, POLICY, CONTEXT, SESSION),
        TTFT_OBJECTIVE,
    )
)

_REMOVED = CONTROL_HEADERS | {*PRIORITIES, TICKET}
"""Headers that a client may not send to an endpoint, besides `reserved_headers`. laar's Envoys
remove those for engines before the picker sets any."""

GATEWAY_HEADERS = frozenset(
    name for old in (FAIRNESS, OBJECTIVE, REWRITE) for name in (old, LLM_D[old])
)
"""Headers with tenant, objective and model, which a gateway sets for its clients."""

SIGNATURES = frozenset(
    (
        *("signature", "signature-input", "digest", "content-digest", "content-md5"),
        *("x-signature", "x-amz-content-sha256", "x-hub-signature-256"),
    )
)
"""Headers that sign the body: if one is present, the context hook leaves the body unchanged."""

_NAMED_ATTRIBUTES = {"request.path": ":path", "request.id": REQUEST_ID}
_ATTRIBUTE_START, _ATTRIBUTE_END = "request.headers['", "']"

_MAX_OPTIONS, _MAX_OPTIONS_CHARS = 8, 1024
_MAX_ID_CHARS = 128
_REQUEST_ID = re.compile(rf"[!-~]{{1,{_MAX_ID_CHARS}}}")


class Answers(StrEnum):
    """Which of laar's headers an answer carries."""

    AUTO = "auto"
    ALL = "all"
    IDS = "ids"
    NONE = "none"


@dataclass(slots=True, kw_only=True)
class Head:
    """The parts of a request's headers that laar uses."""

    path: str
    method: str
    id: str
    named: Named
    tenant: str
    upgrade: bool
    signed: bool
    control: tuple[str, ...]
    tried: str = ""
    companion_of: str = ""
    retries: bool = False
    wrong_answer_s: float | None = None
    given: Mapping[str, str] | None = None
    task: str = ""
    policy: str = ""
    rewrite: str = ""
    objective: str = ""
    context: str = ""
    parent: str = ""
    ttft_objective_s: float | None = None
    patience_s: float | None = None


def attributes_read(tenant_header: str = FAIRNESS) -> list[str]:
    """Return the Envoy attributes for the headers that `read_head` reads of inference requests.

    An Envoy that does not send the picker a request's headers sends these with its body.
    """
    read = {tenant_header.lower(), *GIVEN}
    read.update(CONTROL_HEADERS, SIGNATURES, SESSION_HEADERS, AGENT_HEADERS)
    headers = sorted(read.union(PATIENCE_HEADERS, PARENT_HEADERS))
    return [*_NAMED_ATTRIBUTES, *(f"{_ATTRIBUTE_START}{of}{_ATTRIBUTE_END}" for of in headers)]


@lru_cache(256)  # Envoy's configuration lists a few dozen attributes
def header_of(attribute: str) -> str:
    """Return the name of the header in an attribute; return other attributes unchanged."""
    if attribute.startswith(_ATTRIBUTE_START):
        return attribute[len(_ATTRIBUTE_START) : -len(_ATTRIBUTE_END)]
    return _NAMED_ATTRIBUTES.get(attribute, attribute)


def read_head(headers: Mapping[str, str], tenant_header: str = FAIRNESS) -> Head:
    """Read a request's headers; ignore malformed values."""
    get = headers.get
    method, request_id = get(":method", ""), get(REQUEST_ID, "")
    tenant = get(LLM_D.get(tenant_header, ""), "") or get(tenant_header, "")
    head = Head(
        path=get(":path", ""),
        method=method,
        id=request_id if _REQUEST_ID.fullmatch(request_id) else "",
        named=UNNAMED if NAMELESS.issuperset(headers) else session_of_headers(headers),
        tenant=tenant and _tenant(tenant, secret=tenant_header in CREDENTIALS),
        upgrade="upgrade" in headers or method == "CONNECT",
        signed=not SIGNATURES.isdisjoint(headers),
        control=tuple(_REMOVED.intersection(headers)),
    )
    if not PATIENCE_HEADERS.isdisjoint(headers):
        head.patience_s = patience_of(headers)
    if head.named.session:
        head.parent = parent_of_headers(headers)
    if not HARMLESS_HEADERS.issuperset(headers):
        head.control += reserved_headers(headers)
    if head.control:  # most requests have no control headers

        def either(name: str) -> str:
            return get(LLM_D.get(name, ""), "") or get(name, "")

        head.tried = get(TRIED, "")
        head.companion_of = get(COMPANION_OF, "")[: _MAX_ID_CHARS + 1]  # a longer one is no id
        if wrong := get(WRONG_ANSWER, "").strip().lower():
            head.retries, head.wrong_answer_s = wrong == RETRY, seconds_of(wrong)
        if options := get(OPTIONS, ""):
            head.given = options_of(options)
        head.task = name_of(get(TASK, ""))
        head.policy = name_of(get(POLICY, ""))
        head.rewrite = name_of(either(REWRITE))
        head.objective = name_of(either(OBJECTIVE))
        head.context = name_of(get(CONTEXT, ""))
        head.ttft_objective_s = seconds_of(either(TTFT_OBJECTIVE), 0.001) or None
    for name in GIVEN:
        if value := get(name):
            head.given = {**(head.given or {}), name: value}
    return head


def options_of(text: str) -> dict[str, str]:
    """Parse the value of `OPTIONS`; ignore what has no name, and all after the first few."""
    pairs = (item.partition("=") for item in text[:_MAX_OPTIONS_CHARS].split(",")[:_MAX_OPTIONS])
    return {name.strip().lower(): value.strip() for name, _, value in pairs if name.strip()}


def read_subset(items: Iterable[str]) -> frozenset[str]:
    """Parse the items of a subset hint; each may contain several addresses, separated by commas."""
    texts = (part.strip() for item in items for part in item.split(","))
    return frozenset(text for text in texts if text)


def media_type(content_type: str) -> str:
    """Return the media type in lower case; empty if missing or `application/octet-stream`."""
    given = content_type.partition(";")[0].strip().lower()
    return "" if given == "application/octet-stream" else given


def retry_after_s(value: str, now: float) -> float | None:
    """Parse ``retry-after``, a number or a date, into seconds; return None if it is neither.

    Args:
        value: value of the header.
        now: the time in seconds since the epoch.
    """
    if value.isascii() and value.isdigit():
        return float(value[:9])  # finite, but beyond any limit
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, until.replace(tzinfo=until.tzinfo or UTC).timestamp() - now)


def text_of(raw: bytes) -> str:
    """Decode a header's value as UTF-8, else as Latin-1, so that different bytes stay different."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _tenant(value: str, *, secret: bool) -> str:
    """Return a tenant's name, or a digest if it is secret or not a valid name (accents, too long).

    Names are sent to other pickers. If invalid names were ignored, their tenants would share
    prefixes and one turn in the queue.
    """
    value = value.strip()
    if value and (secret or not name_of(value)):
        return blake2b(value.encode(), digest_size=16).hexdigest()
    return value


def seconds_of(value: str, unit_s: float = 1.0) -> float | None:
    """Parse a time of 0 to an hour; return the hour if it is longer, None if it is no time."""
    try:
        seconds = float(value) * unit_s
    except ValueError:
        return None
    return min(seconds, MAX_OBJECTIVE_S) if seconds >= 0.0 else None
