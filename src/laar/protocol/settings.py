"""Limits and choices of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MaxLen, MinLen

from laar.declaring import Applies, Matches
from laar.protocol.headers import FAIRNESS, Answers
from laar.protocol.paths import DENIED_PATHS, HEALTH_PATHS


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Limits and choices of a stream; in the settings file they are in several sections."""

    applies: ClassVar = Applies.AT_ONCE

    max_body_bytes: Annotated[int, Applies.AFTER_RESTART, Ge(1024), Le(1 << 30)] = 32 << 20
    """Maximum size of a request body; larger bodies get 413. In the native shape, Envoy's buffer
    limit does the same, so keep the two equal."""
    opaque_paths: tuple[str, ...] = ("/v1/files", "/v1/uploads")
    """Prefixes of paths whose bodies are never read: these requests go to the endpoint that stores
    the object, or to any. On other unknown paths (audio, images, rerank) only the model is read."""
    any_model_paths: tuple[str, ...] = HEALTH_PATHS
    """Prefixes of paths that any endpoint may answer, whatever it serves. On others, a request that
    names no model, in its path or body, gets 400 if the endpoints serve several models. Lists of
    models, stored objects and OPTIONS requests need no name either."""
    denied_paths: Annotated[tuple[str, ...], MaxLen(1000)] = DENIED_PATHS
    """Paths that get 403 with all below them, in any spelling and below any prefix. A model may
    have any name. The default lists engines' paths that put them to sleep, load weights, empty
    caches or show internals. Paths with `..` or `%u`, or over 2048 characters, get 403 too, even if
    the list is empty. With laar's bootstraps, Envoy itself denies the default list."""
    tenant_header: Annotated[
        str, Applies.AFTER_RESTART, MinLen(1), MaxLen(128), Matches(r"^[a-z0-9-]+$")
    ] = FAIRNESS
    """Request header, in lower case, that names the tenant. Fairness between tenants is measured in
    tokens. A client that sets the header chooses its tenant, so let the gateway set it. Render
    laar's Envoys with the same name (`laar envoy --tenant-header`)."""
    answers: Answers = Answers.AUTO
    """Which x-laar-* headers an answer carries. `all`: all of them. `ids`: all except
    x-laar-cost-ms, x-laar-ttft-ms, x-laar-held-ms, x-laar-endpoint and x-laar-overhead-us. `none`:
    no header, so clients can neither name the models that failed nor report outcomes. `auto`: `ids`
    for requests that name a tenant, else `all`. Cost and TTFT reveal whether a prompt was sent
    before, even by another tenant, and the endpoint is an internal address: hide them from tenants
    who do not trust each other."""
    by_tenant: bool = False
    """Whether prefixes are tracked separately for each tenant (flow.tenant_header names it). Set it
    if tenants do not trust each other: then neither the choice of endpoint nor its speed reveals
    other tenants' prompts. Also send engines a `cache_salt` for each tenant. False by default,
    since tenants often share a system prompt."""
    list_models: bool = True
    """Whether the picker answers GET /v1/models and GET /v1/models/NAME with all model names of the
    fleet (of the pool, if the route names one) and the aliases. Otherwise, and always in shadow
    mode or with a subset hint, a single endpoint answers, and may require a key."""
    restore_names: bool = True
    """Whether the `model` of uncompressed answers that pass through the picker (`gateway`, full
    duplex) becomes the client's, such as `auto`; in others it is the one that answered."""
    allow_policy_header: bool = False
    """Whether a client's x-laar-policy may select another policy for its request: to compare
    policies, since some cost other clients time. Otherwise it is removed, and the answer says so in
    x-laar-ignored. `laar explain` always accepts it."""
    conformance_headers: bool = False
    """Whether the header test-epp-endpoint-selection restricts a request to the endpoints it names,
    and answers name the selected and the serving endpoints. Only for the conformance tests
    of the Gateway API Inference Extension: it lets any client choose an endpoint."""
    gateway_lists: bool = False
    """Whether gateways other than laar's own get a list of endpoints, of which their retries use
    the next, as Istio reads it. Others (Envoy AI Gateway, kgateway, agentgateway) take a list for
    one address, and find no such endpoint."""
