"""Routes to the endpoints: retries, idle timeouts and hedging.

**Retries.** An attempt that fails before the first byte of an answer is retried on the next
endpoint of the picker's list: on connection failures, resets, and the statuses in `RETRIED`. 500
and resets are included although the engine may have started: an endpoint that fails at once is far
more common than a request that breaks every engine, and the retry limit bounds the harm of such a
request. Retries by the client multiply this limit.

**Silence.** ``per_try_idle_timeout`` ends a stream that does not start or continue. Only the picker
knows how long a prefill may take, but a route's timeouts are fixed, so there is a route for each of
several silences. The picker names one in its metadata, and Envoy recomputes the route.

**Delay.** If response headers do not arrive within the time that the picker names
(``per_try_timeout``), the request is also sent to the next endpoint, and the first to respond wins
(``hedge_on_per_try_timeout``), so an endpoint that is only slow is not cut off.
"""

from __future__ import annotations

from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, METADATA_NAMESPACE
from laar.envoy.options import RETRIED, RETRY_ON, BootstrapOptions
from laar.envoy.parts import Json, duration, extension, set_headers, typed
from laar.protocol import headers as names
from laar.protocol.agreed import LB_NAMESPACE
from laar.protocol.events import Patience
from laar.protocol.paths import SUFFIXES
from laar.protocol.stream.contract_headers import ONCE

EXT_PROC = "envoy.filters.http.ext_proc"
EXT_PROC_TYPE = "extensions.filters.http.ext_proc.v3"
BUFFER = "envoy.filters.http.buffer"
BUFFER_TYPE = "extensions.filters.http.buffer.v3"

_GENERATION: Json = {
    "safe_regex": {"regex": f".*({'|'.join(suffix for suffix, _ in SUFFIXES)})/?"},
    "headers": [
        {"name": ":method", "string_match": {"exact": "POST"}},
        {"name": "content-length", "string_match": {"safe_regex": {"regex": "0*[1-9][0-9]*"}}},
        # The body of an upgrade never ends, whatever its stated length.
        {"name": "upgrade", "present_match": True, "invert_match": True},
    ],
}

_HOST_ATTEMPTS = 5
"""Maximum picks by the fallback policy per retry, to avoid an endpoint that just failed."""


def routes(*entries: Json) -> Json:
    """Return a route table with one virtual host."""
    return {
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(entries)}],
        # Headers for the picker only: it can't remove them if Envoy does not send it any. The
        # destination stays, since endpoints behind another picker may need it.
        "request_headers_to_remove": sorted(names.CONTROL_HEADERS - {names.DESTINATION}),
        # If Envoy sends the picker no headers, it can't set any and uses metadata.
        "request_headers_to_add": set_headers(
            {name: f"%DYNAMIC_METADATA({LB_NAMESPACE}:{name})%" for name in names.SET_BY_ROUTES}
        ),
    }


def endpoints_routes(options: BootstrapOptions, *, streamed: bool) -> list[Json]:
    """Return the routes to the endpoints for all silences; before a decision the last apply.

    An inference request, which has a body, costs the picker one message, not two: Envoy does not
    send its headers. Other requests are decided when their headers arrive, even with
    a body of unknown length: if it were empty, no message with a body would follow.
    """
    allowed = (
        ONCE,
        *(Patience(silence_s, begin_s) for begin_s, silence_s in names.BEGINS_S.items()),
        *(Patience(silence_s) for silence_s in names.SILENCES_S),
        Patience(),
    )
    buffer = typed(
        f"{BUFFER_TYPE}.BufferPerRoute", buffer={"max_request_bytes": options.max_body_bytes}
    )
    at_headers: Json = {"processing_mode": processing_mode(streamed=streamed, headers=True)}
    found = []
    for patience in allowed:
        if (patience.silence_s or 0) >= options.idle_timeout_s and not patience.once:
            continue
        found.append(_route(_GENERATION, options, patience, {}, {BUFFER: buffer}))
        found.append(_route({"prefix": "/"}, options, patience, at_headers, {}))
    return found


def processing_mode(*, streamed: bool, headers: bool) -> Json:
    """Return which parts of a stream Envoy sends to the picker.

    Without `headers` it sends no request headers; the picker gets the needed ones as attributes.
    """
    return {
        "request_header_mode": "SEND" if headers else "SKIP",
        "request_body_mode": "BUFFERED",
        "request_trailer_mode": "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": "STREAMED" if streamed else "NONE",
        "response_trailer_mode": "SEND" if streamed else "SKIP",
    }


def _route(
    match: Json, options: BootstrapOptions, patience: Patience, overrides: Json, filters: Json
) -> Json:
    named = {names.SILENCE: patience.silence_s, names.BEGIN: patience.begin_s}
    if patience.once:
        named = {names.ONCE: 1}
    metadata = [
        {
            "filter": LB_NAMESPACE,
            "path": [{"key": key}],
            "value": {"string_match": {"exact": str(seconds)}},
        }
        for key, seconds in named.items()
        if seconds is not None
    ]
    silence_s = min(patience.silence_s or options.idle_timeout_s, options.idle_timeout_s)
    retries: Json = {
        # A refused connection is never the request's fault.
        "retry_on": "connect-failure" if patience.once else RETRY_ON,
        "retriable_status_codes": list(RETRIED),
        "num_retries": options.retries,
        "per_try_idle_timeout": duration(silence_s),
        "host_selection_retry_max_attempts": _HOST_ATTEMPTS,
        "retry_host_predicate": [
            extension(
                "retry_host_predicates.previous_hosts",
                "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
    }
    action: Json = {
        "cluster": ENDPOINTS_CLUSTER,
        "path_rewrite": f"%DYNAMIC_METADATA({LB_NAMESPACE}:{names.PATH})%",
        # Use the host name of each attempt's endpoint, if the endpoints file has one.
        "auto_host_rewrite": True,
        "timeout": duration(options.request_timeout_s),
        "idle_timeout": duration(options.idle_timeout_s),
        "retry_policy": retries,
    }
    if patience.begin_s is not None:
        retries["per_try_timeout"] = duration(patience.begin_s)
        action["hedge_policy"] = {"hedge_on_per_try_timeout": True}
    picking = typed(f"{EXT_PROC_TYPE}.ExtProcPerRoute", overrides=overrides)
    return {
        "match": {**match, **({"dynamic_metadata": metadata} if metadata else {})},
        "metadata": {"filter_metadata": {METADATA_NAMESPACE: {"attempts": 1 + options.retries}}},
        "typed_per_filter_config": {EXT_PROC: picking, **filters},
        "route": action,
    }
