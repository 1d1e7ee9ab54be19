"""The two listeners of a laar Envoy: requests for the endpoints, and probes."""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    HttpProtocolOptionsHeadersWithUnderscoresAction,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer, BufferPerRoute
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExtProcOverrides,
    ExtProcPerRoute,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.health_check.v3 import HealthCheck
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
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
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any, Struct

from laar.envoy.bootstrap import BodyMode, BootstrapOptions, Shape
from laar.envoy.clusters import (
    ADMIN_CLUSTER,
    DESTINATION_HEADER,
    LB_NAMESPACE,
    PICKER_CLUSTER,
    SERVED_KEY,
    extension,
    socket_address,
)
from laar.envoy.denied import denied_route
from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, METADATA_NAMESPACE
from laar.protocol import headers as names
from laar.protocol.openai import SUFFIXES

DATA_LISTENER = "data"
PROBE_LISTENER = "probes"

_EXT_PROC = "envoy.filters.http.ext_proc"
_BUFFER = "envoy.filters.http.buffer"
_GENERATION_PATHS = f".*({'|'.join(suffix for suffix, _ in SUFFIXES)})/?"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_ANY_IPV4 = "0.0.0.0"  # noqa: S104 - a gateway is there to be reached
_LOOPBACK = "127.0.0.1"
_CLIENT_STREAM_WINDOW_BYTES = 1024 * 1024
_CLIENT_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024

_RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""Only failures before an endpoint can have begun to work: generating twice costs twice."""

_RETRIES = 3
_HOST_ATTEMPTS = 5
"""Draws of the fallback policy that may hit an endpoint that has just failed, for one retry."""

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
    "picked": f"%DYNAMIC_METADATA({LB_NAMESPACE}:{DESTINATION_HEADER})%",
    "served": f"%DYNAMIC_METADATA({LB_NAMESPACE}:{SERVED_KEY})%",
    "endpoint_model": f"%UPSTREAM_METADATA({METADATA_NAMESPACE}:model)%",
    "decision_id": "%RESP(X-LAAR-DECISION-ID)%",
    "model": "%RESP(X-LAAR-MODEL)%",
    "endpoint": "%RESP(X-LAAR-ENDPOINT)%",
    "reason": "%RESP(X-LAAR-REASON)%",
}


def data_listener(shape: Shape, options: BootstrapOptions) -> Listener:
    """Where requests come in."""
    body_mode = options.body_mode or ("full-duplex" if shape == "gateway" else "native")
    return Listener(
        name=DATA_LISTENER,
        address=socket_address(_LOOPBACK if shape == "sidecar" else _ANY_IPV4, options.listen_port),
        per_connection_buffer_limit_bytes=options.max_body_bytes,
        filter_chains=[_chain(_data_connections(shape, options, body_mode))],
    )


def probe_listener(port: int) -> Listener:
    """``/ready``, false while Envoy drains, and its metrics; nothing else of the admin port."""
    return Listener(
        name=PROBE_LISTENER,
        address=socket_address(_ANY_IPV4, port),
        # Probes have to be answered while clients hold every connection there may be.
        ignore_global_conn_limit=True,
        filter_chains=[
            _chain(
                HttpConnectionManager(
                    stat_prefix=PROBE_LISTENER,
                    route_config=_routes(
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
    shape: Shape, options: BootstrapOptions, body_mode: BodyMode
) -> HttpConnectionManager:
    manager = HttpConnectionManager(
        stat_prefix=DATA_LISTENER,
        route_config=_routes(
            denied_route(_EXT_PROC),
            *_endpoints_routes(body_mode, timedelta(seconds=options.request_timeout_s)),
        ),
        http_filters=[
            _http_filter(_EXT_PROC, _external_processor(options, body_mode)),
            *_until_decided(options, body_mode),
            _router(),
        ],
        # Whoever asks must not name the endpoint: with the picker down the header would decide.
        early_header_mutation_extensions=[
            extension(
                "envoy.http.early_header_mutation.header_mutation",
                EarlyHeaderMutation(mutations=[HeaderMutation(remove=DESTINATION_HEADER)]),
            )
        ],
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
            HttpProtocolOptionsHeadersWithUnderscoresAction.REJECT_REQUEST
        )
    )


def _external_processor(options: BootstrapOptions, body_mode: BodyMode) -> ExternalProcessor:
    native = body_mode == "native"
    attributes = [names.POOL]  # a route may name its pool: metadata {laar: {pool: NAME}}
    if native:
        attributes += names.attributes_read(options.tenant_header)
    return ExternalProcessor(
        stat_prefix="laar",
        grpc_service=GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PICKER_CLUSTER, authority=options.picker)
        ),
        processing_mode=_processing_mode(native=native, headers=not native),
        # A picker samples the answers of some requests, and releases upgrades, by an override.
        allow_mode_override=native,
        failure_mode_allow=options.fail_open,
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        message_timeout=timedelta(seconds=options.message_timeout_s),
        request_attributes=attributes,
        metadata_options=MetadataOptions(
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=[LB_NAMESPACE]),
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[LB_NAMESPACE, _SUBSET_NAMESPACE]
            ),
        ),
    )


def _processing_mode(*, native: bool, headers: bool) -> ProcessingMode:
    """What the picker is sent; without `headers` of a native request only what it reads of them."""
    send, skip = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP
    bodies = ProcessingModeBodySendMode
    trailers = skip if native else send
    return ProcessingMode(
        request_header_mode=send if headers else skip,
        request_body_mode=bodies.BUFFERED if native else bodies.FULL_DUPLEX_STREAMED,
        request_trailer_mode=trailers,
        response_header_mode=send,
        response_body_mode=bodies.NONE if native else bodies.FULL_DUPLEX_STREAMED,
        response_trailer_mode=trailers,
    )


def _endpoints_routes(body_mode: BodyMode, timeout: timedelta) -> list[Route]:
    """Where requests go, all to the same endpoints.

    In the native mode the requests that models answer, which have a body, cost the picker one
    message instead of two: Envoy keeps their headers. Any other request is decided at its headers.
    """
    if body_mode != "native":
        return [_endpoints_route(RouteMatch(prefix="/"), timeout)]
    generation = RouteMatch(
        safe_regex=RegexMatcher(regex=_GENERATION_PATHS),
        headers=[HeaderMatcher(name=":method", string_match=StringMatcher(exact="POST"))],
    )
    other = _endpoints_route(RouteMatch(prefix="/"), timeout)
    headers = ExtProcOverrides(processing_mode=_processing_mode(native=True, headers=True))
    other.typed_per_filter_config = {
        _EXT_PROC: Any.pack(ExtProcPerRoute(overrides=headers)),
        _BUFFER: Any.pack(BufferPerRoute(disabled=True)),
    }
    return [_endpoints_route(generation, timeout), other]


def _until_decided(options: BootstrapOptions, body_mode: BodyMode) -> list[HttpFilter]:
    """Holds a native request's headers back until its body is whole and the picker has decided.

    Its headers do not go to the picker, so ext_proc would let them pass, and an endpoint would be
    chosen before the body is read.
    """
    if body_mode != "native":
        return []
    return [_http_filter(_BUFFER, Buffer(max_request_bytes=options.max_body_bytes))]


def _endpoints_route(match: RouteMatch, timeout: timedelta) -> Route:
    return Route(
        match=match,
        route=RouteAction(
            cluster=ENDPOINTS_CLUSTER,
            timeout=timeout,
            idle_timeout=timeout,
            retry_policy=RetryPolicy(
                retry_on=_RETRY_ON,
                num_retries=_RETRIES,
                host_selection_retry_max_attempts=_HOST_ATTEMPTS,
                retry_host_predicate=[
                    RetryPolicyRetryHostPredicate(
                        name="envoy.retry_host_predicates.previous_hosts",
                        typed_config=Any.pack(PreviousHostsPredicate()),
                    )
                ],
            ),
        ),
    )


def _routes(*routes: Route) -> RouteConfiguration:
    return RouteConfiguration(
        virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=list(routes))],
        # For the picker alone, and where Envoy keeps the headers nobody else takes them off. The
        # destination stays: endpoints behind a further picker may want to know.
        request_headers_to_remove=sorted(names.CONTROL_HEADERS - {names.DESTINATION}),
    )


def _chain(manager: HttpConnectionManager) -> FilterChain:
    name = "envoy.filters.network.http_connection_manager"
    return FilterChain(filters=[Filter(name=name, typed_config=Any.pack(manager))])


def _http_filter(name: str, config: Message) -> HttpFilter:
    return HttpFilter(name=name, typed_config=Any.pack(config))


def _router() -> HttpFilter:
    return _http_filter("envoy.filters.http.router", Router(suppress_envoy_headers=True))


def _access_log() -> AccessLog:
    log_format = SubstitutionFormatString(json_format=Struct.from_dict(_ACCESS_LOG))
    return AccessLog(
        name="envoy.access_loggers.stdout",
        typed_config=Any.pack(StdoutAccessLog(log_format=log_format)),
    )
