"""The two listeners of a laar Envoy: requests for the endpoints, and probes."""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    HttpProtocolOptionsHeadersWithUnderscoresAction,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, Route, RouteAction, RouteMatch
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
)
from envoy_data_plane.envoy.extensions.filters.http.health_check.v3 import HealthCheck
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import (
    Config as SetFilterState,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpConnectionManagerServerHeaderTransformation,
    HttpConnectionManagerUpgradeConfig,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any, Struct

from laar.envoy.clusters import (
    ADMIN_CLUSTER,
    PICKER_CLUSTER,
    extension,
    socket_address,
)
from laar.envoy.denied import denied_route
from laar.envoy.endpoints_file import METADATA_NAMESPACE
from laar.envoy.options import ANY_IPV4, MESSAGE_TIMEOUT_S, BodyMode, BootstrapOptions, Shape
from laar.envoy.replies import local_replies
from laar.envoy.routes import BUFFER, EXT_PROC, endpoints_routes, processing_mode, routes
from laar.protocol import agreed
from laar.protocol import headers as names

DATA_LISTENER = "data"
PROBE_LISTENER = "probes"

STAT_PREFIX = "laar"
"""Begins the names of the ext_proc filter's statistics, and shows that laar rendered the filter."""

DELAYED_CLOSE = timedelta(milliseconds=250)
"""How long Envoy waits, after an answer that it cannot finish, for the client to close first. With
its own second a client learns a second later that its answer is broken off."""

_CLIENT_STREAM_WINDOW_BYTES = 1024 * 1024
_CLIENT_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024

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


def body_mode(shape: Shape, options: BootstrapOptions) -> BodyMode:
    """The mode that was chosen, or the shape's own."""
    return options.body_mode or ("streamed" if shape == "gateway" else "native")


def data_listener(shape: Shape, options: BootstrapOptions) -> Listener:
    """The listener on which requests come in."""
    return Listener(
        name=DATA_LISTENER,
        address=socket_address(options.data_host(shape), options.listen_port),
        # A second Envoy on this port is an error, not a silent share of the requests.
        enable_reuse_port=False,
        per_connection_buffer_limit_bytes=options.max_body_bytes,
        filter_chains=[_chain(_data_connections(shape, options, body_mode(shape, options)))],
    )


def probe_listener(options: BootstrapOptions) -> Listener:
    """``/ready``, false while Envoy drains, and its metrics; nothing else of the admin port."""
    return Listener(
        name=PROBE_LISTENER,
        address=socket_address(options.listen_host or ANY_IPV4, options.ready_port),
        enable_reuse_port=False,
        # Probes have to be answered while clients hold every connection there may be.
        ignore_global_conn_limit=True,
        filter_chains=[
            _chain(
                HttpConnectionManager(
                    stat_prefix=PROBE_LISTENER,
                    route_config=routes(
                        Route(
                            match=RouteMatch(path="/stats/prometheus"),
                            route=RouteAction(cluster=ADMIN_CLUSTER),
                        )
                    ),
                    http_filters=[
                        _http_filter(
                            "envoy.filters.http.health_check",
                            HealthCheck(
                                pass_through_mode=False,
                                headers=[
                                    HeaderMatcher(
                                        name=":path", string_match=StringMatcher(exact="/ready")
                                    )
                                ],
                            ),
                        ),
                        _router(),
                    ],
                )
            )
        ],
    )


def _data_connections(
    shape: Shape, options: BootstrapOptions, bodies: BodyMode
) -> HttpConnectionManager:
    manager = HttpConnectionManager(
        stat_prefix=DATA_LISTENER,
        route_config=routes(denied_route(), *endpoints_routes(bodies, options)),
        http_filters=[
            _http_filter(EXT_PROC, _external_processor(options, bodies), on_routes=True),
            *_until_decided(options, bodies),
            _router(),
        ],
        early_header_mutation_extensions=[
            extension(
                "envoy.http.early_header_mutation.header_mutation",
                EarlyHeaderMutation(
                    mutations=[
                        HeaderMutation(remove=name) for name in sorted(_not_for(shape, options))
                    ]
                ),
            )
        ],
        http_protocol_options=Http1ProtocolOptions(
            accept_http_10=True, default_host_for_http_10="localhost"
        ),
        local_reply_config=local_replies(),
        stream_idle_timeout=timedelta(seconds=options.idle_timeout_s),
        delayed_close_timeout=DELAYED_CLOSE,
        http2_protocol_options=Http2ProtocolOptions(
            initial_stream_window_size=_CLIENT_STREAM_WINDOW_BYTES,
            initial_connection_window_size=_CLIENT_CONNECTION_WINDOW_BYTES,
        ),
        upgrade_configs=[HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        server_header_transformation=HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        access_log=[_access_log()],
    )
    if shape == "sidecar":
        manager.use_remote_address = False
        manager.skip_xff_append = True
    else:
        _guard_against_strangers(manager)
    return manager


def _not_for(shape: Shape, options: BootstrapOptions) -> frozenset[str]:
    """Headers that clients may not set.

    With the picker down a destination header would decide, and only a gateway may set headers that
    name a tenant, an objective or another model. The sidecar's one client is the application beside
    it. A tenant header that clients have to send, for engines check it, stays.
    """
    trusted = options.trust_gateway_headers
    if trusted is None:
        trusted = shape == "sidecar"
    never = {names.DESTINATION, names.SERVED, names.SUBSET, *names.ENGINE_HEADERS}
    if trusted:
        return frozenset(never)
    tenant = {options.tenant_header.lower()} - names.CREDENTIALS
    return frozenset({*never, *names.GATEWAY_HEADERS, *tenant})


def _guard_against_strangers(manager: HttpConnectionManager) -> None:
    manager.use_remote_address = True
    manager.request_headers_timeout = timedelta(seconds=10)
    manager.normalize_path = True
    manager.merge_slashes = True
    manager.path_with_escaped_slashes_action = (
        HttpConnectionManagerPathWithEscapedSlashesAction.REJECT_REQUEST
    )
    manager.common_http_protocol_options = HttpProtocolOptions(
        headers_with_underscores_action=(
            HttpProtocolOptionsHeadersWithUnderscoresAction.DROP_HEADER
        )
    )


def _external_processor(options: BootstrapOptions, bodies: BodyMode) -> ExternalProcessor:
    whole = bodies != "full-duplex"
    # A route may name its pool: metadata {laar: {pool: NAME}}.
    attributes = [names.POOL, agreed.ATTEMPTS]
    if whole:
        attributes += names.attributes_read(options.tenant_header)
    return ExternalProcessor(
        stat_prefix=STAT_PREFIX,
        grpc_service=GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PICKER_CLUSTER, authority=options.picker)
        ),
        processing_mode=processing_mode(bodies, headers=not whole),
        # A picker samples the answers of some requests, and releases upgrades, by an override.
        allow_mode_override=whole,
        failure_mode_allow=options.fail_open,
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        message_timeout=timedelta(seconds=MESSAGE_TIMEOUT_S),
        # For requests that flow control holds, one by one: the picker asks for it.
        max_message_timeout=timedelta(seconds=options.longest_answer_s),
        request_attributes=attributes,
        response_attributes=[agreed.ANSWERED_BY, agreed.ATTEMPTED, agreed.DETAILS],
        metadata_options=MetadataOptions(
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=[agreed.LB_NAMESPACE]),
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[agreed.LB_NAMESPACE, agreed.SUBSET_NAMESPACE]
            ),
        ),
    )


def _until_decided(options: BootstrapOptions, bodies: BodyMode) -> list[HttpFilter]:
    """Holds a native request's headers back until its body is whole and the picker has decided.

    Its headers do not go to the picker, so ext_proc would let them pass, and an endpoint would be
    chosen before the body is read. For the same reason ext_proc does not look for the route again
    when the decision asks it to, so another filter does.
    """
    if bodies == "full-duplex":
        return []
    return [
        _http_filter(BUFFER, Buffer(max_request_bytes=options.max_body_bytes), on_routes=True),
        _http_filter("envoy.filters.http.set_filter_state", SetFilterState(clear_route_cache=True)),
    ]


def _chain(manager: HttpConnectionManager) -> FilterChain:
    name = "envoy.filters.network.http_connection_manager"
    return FilterChain(filters=[Filter(name=name, typed_config=Any.pack(manager))])


def _http_filter(name: str, config: Message, *, on_routes: bool = False) -> HttpFilter:
    """A filter of all requests, or of those alone whose route configures it.

    A request that Envoy refuses while it reads the headers has no route. Its answer would wait for
    the picker while the connection closes, and be lost.
    """
    return HttpFilter(name=name, typed_config=Any.pack(config), disabled=on_routes)


def _router() -> HttpFilter:
    return _http_filter("envoy.filters.http.router", Router(suppress_envoy_headers=True))


def _access_log() -> AccessLog:
    log_format = SubstitutionFormatString(json_format=Struct.from_dict(_ACCESS_LOG))
    return AccessLog(
        name="envoy.access_loggers.stdout",
        typed_config=Any.pack(StdoutAccessLog(log_format=log_format)),
    )
