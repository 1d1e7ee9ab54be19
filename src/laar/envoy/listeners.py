"""The two listeners of laar's Envoy: one for requests, one for probes."""

from __future__ import annotations

from laar.envoy.clusters import ADMIN_CLUSTER, PICKER_CLUSTER
from laar.envoy.endpoints_file import METADATA_NAMESPACE
from laar.envoy.options import ANY_IPV4, MESSAGE_TIMEOUT_S, BootstrapOptions, Shape
from laar.envoy.parts import Json, duration, extension, socket_address, typed
from laar.envoy.replies import denied_route, local_replies
from laar.envoy.routes import (
    BUFFER,
    BUFFER_TYPE,
    EXT_PROC,
    EXT_PROC_TYPE,
    endpoints_routes,
    processing_mode,
    routes,
)
from laar.protocol import agreed
from laar.protocol import headers as names

DATA_LISTENER = "data"
PROBE_LISTENER = "probes"

STAT_PREFIX = "laar"
"""Prefix of the ext_proc filter's statistics; also marks the filter as rendered by laar."""

DELAYED_CLOSE_S = 0.25
"""Seconds for which Envoy waits for the client to close first after an answer was cut off. With
Envoy's default the client would learn of it a second later."""

_CLIENT_STREAM_WINDOW_BYTES = 1024 * 1024
_CLIENT_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024

_ROUTER = extension(
    "filters.http.router", "extensions.filters.http.router.v3.Router", suppress_envoy_headers=True
)

_ACCESS_LOG = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "traceparent": "%REQ(TRACEPARENT)%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "request_ms": "%REQUEST_DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "picked": f"%DYNAMIC_METADATA({agreed.LB_NAMESPACE}:{names.DESTINATION})%",
    "served": "%UPSTREAM_HOST%",
    "endpoint_model": f"%UPSTREAM_METADATA({METADATA_NAMESPACE}:model)%",
    "decision_id": "%RESP(X-LAAR-DECISION-ID)%",
    "model": "%RESP(X-LAAR-MODEL)%",
    "endpoint": "%RESP(X-LAAR-ENDPOINT)%",
    "reason": "%RESP(X-LAAR-REASON)%",
}


def data_listener(shape: Shape, options: BootstrapOptions) -> Json:
    """Return the listener for requests."""
    return {
        "name": DATA_LISTENER,
        "address": socket_address(options.data_host(shape), options.listen_port),
        # A second Envoy on this port must fail, not silently get a share of the requests.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": options.max_body_bytes,
        "filter_chains": _connections(**_data_connections(shape, options)),
    }


def probe_listener(options: BootstrapOptions) -> Json:
    """Return the listener for Envoy's metrics and ``/ready``, which fails while Envoy drains."""
    metrics: Json = {"match": {"path": "/stats/prometheus"}, "route": {"cluster": ADMIN_CLUSTER}}
    ready = extension(
        "filters.http.health_check",
        "extensions.filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": "/ready"}}],
    )
    return {
        "name": PROBE_LISTENER,
        "address": socket_address(options.listen_host or ANY_IPV4, options.ready_port),
        "enable_reuse_port": False,
        # Answer probes even if clients hold all allowed connections.
        "ignore_global_conn_limit": True,
        "filter_chains": _connections(
            stat_prefix=PROBE_LISTENER, route_config=routes(metrics), http_filters=[ready, _ROUTER]
        ),
    }


def _connections(**fields: object) -> list[Json]:
    name = "filters.network.http_connection_manager"
    manager = extension(name, f"extensions.{name}.v3.HttpConnectionManager", **fields)
    return [{"filters": [manager]}]


def _data_connections(shape: Shape, options: BootstrapOptions) -> Json:
    streamed = shape == "gateway"
    name = "http.early_header_mutation.header_mutation"
    return {
        "stat_prefix": DATA_LISTENER,
        "route_config": routes(denied_route(), *endpoints_routes(options, streamed=streamed)),
        "http_filters": [*_picking(options, streamed=streamed), _ROUTER],
        "early_header_mutation_extensions": [
            extension(
                name,
                f"extensions.{name}.v3.HeaderMutation",
                mutations=[{"remove": header} for header in sorted(_not_for(shape, options))],
            )
        ],
        "http_protocol_options": {
            "accept_http_10": True,
            "default_host_for_http_10": "localhost",
        },
        "http2_protocol_options": {
            "initial_stream_window_size": _CLIENT_STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CLIENT_CONNECTION_WINDOW_BYTES,
        },
        "local_reply_config": local_replies(),
        "stream_idle_timeout": duration(options.idle_timeout_s),
        "delayed_close_timeout": duration(DELAYED_CLOSE_S),
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "server_header_transformation": "PASS_THROUGH",
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "access_log": [
            extension(
                "access_loggers.stdout",
                "extensions.access_loggers.stream.v3.StdoutAccessLog",
                log_format={"json_format": _ACCESS_LOG},
            )
        ],
        **(_TRUSTED_CLIENT if shape == "sidecar" else _ANY_CLIENT),
    }


_TRUSTED_CLIENT: Json = {"use_remote_address": False, "skip_xff_append": True}
_ANY_CLIENT: Json = {
    "use_remote_address": True,
    "request_headers_timeout": duration(10),
    "normalize_path": True,
    "merge_slashes": True,
    "path_with_escaped_slashes_action": "REJECT_REQUEST",
    "common_http_protocol_options": {"headers_with_underscores_action": "DROP_HEADER"},
}


def _not_for(shape: Shape, options: BootstrapOptions) -> frozenset[str]:
    """Return the headers that clients may not set.

    With the picker down a destination header would take effect, and only a gateway may set tenant,
    objective or model headers. A sidecar trusts its application to set these. A tenant header that
    carries credentials is kept, since engines check it.
    """
    trusted = options.trust_gateway_headers
    if trusted is None:
        trusted = shape == "sidecar"
    never = {names.DESTINATION, names.SERVED, names.SUBSET, *names.ENGINE_HEADERS}
    if trusted:
        return frozenset(never)
    tenant = {options.tenant_header.lower()}.difference(names.CREDENTIALS)
    return frozenset({*never, *names.GATEWAY_HEADERS, *tenant})


def _picking(options: BootstrapOptions, *, streamed: bool) -> list[Json]:
    """Return the filters that call the picker, for routes that enable them.

    Elsewhere they are disabled: a request that Envoy rejects while reading the headers has no
    route, and its answer would be lost, waiting for the picker while the connection closes.

    Headers are not sent to the picker. ext_proc alone would pass them on, and an endpoint would be
    chosen before the body is read. So a buffer holds the headers until the body is complete and the
    picker has decided. ext_proc then also ignores the decision's request to recompute the route, so
    another filter does it.
    """
    ext_proc: Json = {
        "name": EXT_PROC,
        "typed_config": _external_processor(options, streamed=streamed),
        "disabled": True,
    }
    buffer = typed(f"{BUFFER_TYPE}.Buffer", max_request_bytes=options.max_body_bytes)
    return [
        ext_proc,
        {"name": BUFFER, "typed_config": buffer, "disabled": True},
        extension(
            "filters.http.set_filter_state",
            "extensions.filters.http.set_filter_state.v3.Config",
            clear_route_cache=True,
        ),
    ]


def _external_processor(options: BootstrapOptions, *, streamed: bool) -> Json:
    # A route may name its pool: metadata {laar: {pool: NAME}}.
    attributes = [
        *(names.POOL, agreed.ATTEMPTS),
        *names.attributes_read(options.tenant_header),
    ]
    return typed(
        f"{EXT_PROC_TYPE}.ExternalProcessor",
        stat_prefix=STAT_PREFIX,
        grpc_service={"envoy_grpc": {"cluster_name": PICKER_CLUSTER, "authority": options.picker}},
        processing_mode=processing_mode(streamed=streamed, headers=False),
        # Lets the picker read sampled answers and skip the bodies of upgrades.
        allow_mode_override=True,
        failure_mode_allow=options.fail_open,
        status_on_error={"code": "ServiceUnavailable"},
        message_timeout=duration(MESSAGE_TIMEOUT_S),
        # The picker extends the timeout for each request held by flow control.
        max_message_timeout=duration(options.longest_answer_s),
        request_attributes=attributes,
        response_attributes=[agreed.ANSWERED_BY, agreed.ATTEMPTED, agreed.DETAILS],
        metadata_options={
            "receiving_namespaces": {"untyped": [agreed.LB_NAMESPACE]},
            "forwarding_namespaces": {"untyped": [agreed.LB_NAMESPACE, agreed.SUBSET_NAMESPACE]},
        },
    )
