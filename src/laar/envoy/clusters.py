"""The two clusters of a laar Envoy: the endpoints that serve models, and the picker itself.

**Endpoints** are an EDS cluster read from a file that is replaced by rename, so membership changes
without a restart and an address outside the file can never be reached, by any header. Its
``override_host`` policy takes the picker's ordered list from the request header, then from the
``envoy.lb`` metadata. Without a list least request chooses among all endpoints. With a list that
names no endpoint that Envoy knows, nothing is chosen: endpoints outside the list serve other
models. For that the fallback policy is a subset policy: a request whose metadata holds a
destination asks for endpoints that are labelled with it, and there are none.

Outlier detection counts for least request alone, that is while failing open: ``override_host``
sends requests to an ejected host as well, so it never contradicts the picker's own breaker.

**The picker** speaks HTTP/2. Each request in flight holds one ext_proc stream for its whole life,
hence the circuit breakers far above Envoy's 1,024 and the wide HTTP/2 windows.

Envoy also asks the picker for its health, by gRPC, four times a second. A picker that leaves
reports NOT_SERVING and gets no new streams before its port closes; one that is gone or hangs is out
within two seconds. Streams to it then fail before any byte of a body is sent, so that failing open
works in every body mode and costs no time-out. The endpoints are not probed: the picker knows more
about them.
"""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ApiVersion,
    ConfigSource,
    DataSource,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    PathConfigSource,
    SocketAddress,
    TcpKeepalive,
    TransportSocket,
    TypedExtensionConfig,
    WatchedDirectory,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.subset.v3 import (
    Subset,
    SubsetLbSubsetFallbackPolicy,
    SubsetLbSubsetSelector,
    SubsetLbSubsetSelectorLbSubsetSelectorFallbackPolicy,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER
from laar.envoy.options import BodyMode, BootstrapOptions, is_ip
from laar.protocol.agreed import LB_NAMESPACE, PICKING_SERVICE
from laar.protocol.headers import DESTINATION, SERVED

PICKER_CLUSTER = "laar-picker"
ADMIN_CLUSTER = "admin"

_CONNECT_TIMEOUT = timedelta(seconds=1)
_CHECK_INTERVAL = timedelta(milliseconds=250)
_CHECK_TIMEOUT = timedelta(milliseconds=1500)
"""Together with the interval less than 2 s, after which a picker that hangs is out; one that is
busy for a second stays."""

_PICKER_EJECTED = timedelta(seconds=1)
_PING_INTERVAL = timedelta(milliseconds=500)
_PING_TIMEOUT = timedelta(milliseconds=1500)
_LONG_PING_TIMEOUT = timedelta(seconds=12)
"""Where the end of a stream costs an answer, a picker that comes back within 10 s has to pass."""

_IN_FLIGHT = 100_000
"""Requests and connections at once, per cluster: no limit in practice, yet a limit."""

_RETRY_SHARE = 25.0
_FREE_RETRIES = 100
"""Requests that may wait for a retry at a time: this number in any case, then this share (percent)
of those in flight. The others see the first failure."""

_EJECTED = timedelta(seconds=5)

_H2_WINDOW_BYTES = 16 * 1024 * 1024
_ENDPOINT_IDLE = timedelta(seconds=4)
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request written to
a connection that is just being closed cannot be retried safely, so Envoy has to close first."""

_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def extension(name: str, config: Message) -> TypedExtensionConfig:
    """A named Envoy extension with its typed configuration."""
    return TypedExtensionConfig(name=name, typed_config=Any.pack(config))


def socket_address(host: str, port: int) -> Address:
    """A TCP address; ``host`` is an IP address or, for the picker, a DNS name.

    ``::`` takes clients of both families, as it does where laar listens itself.
    """
    return Address(
        socket_address=SocketAddress(address=host, port_value=port, ipv4_compat=host == "::")
    )


def endpoints_cluster(eds_path: str, watched_directory: str) -> Cluster:
    """The endpoints, from the file at ``eds_path``, with the picker's choice first."""
    return Cluster(
        name=ENDPOINTS_CLUSTER,
        type=ClusterDiscoveryType.EDS,
        connect_timeout=_CONNECT_TIMEOUT,
        eds_cluster_config=ClusterEdsClusterConfig(
            eds_config=ConfigSource(
                path_config_source=PathConfigSource(
                    path=eds_path, watched_directory=WatchedDirectory(path=watched_directory)
                ),
                resource_api_version=ApiVersion.V3,
            )
        ),
        load_balancing_policy=_policy(
            "envoy.load_balancing_policies.override_host",
            OverrideHost(
                override_host_sources=[
                    OverrideHostOverrideHostSource(header=DESTINATION),
                    OverrideHostOverrideHostSource(metadata=_lb_key(DESTINATION)),
                ],
                selected_host_key=_lb_key(SERVED),
                fallback_policy=_policy("envoy.load_balancing_policies.subset", _undecided()),
            ),
        ),
        circuit_breakers=_circuit_breakers(retries=True),
        outlier_detection=OutlierDetection(
            interval=timedelta(seconds=1),
            base_ejection_time=_EJECTED,
            max_ejection_time=6 * _EJECTED,
            max_ejection_percent=50,
            # The success rate of a model shows as much about its requests as about its endpoint.
            enforcing_success_rate=0,
        ),
        typed_extension_protocol_options={
            _PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    common_http_protocol_options=HttpProtocolOptions(idle_timeout=_ENDPOINT_IDLE),
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                        http_protocol_options=Http1ProtocolOptions()
                    ),
                )
            )
        },
    )


def picker_cluster(options: BootstrapOptions, body_mode: BodyMode) -> Cluster:
    """The picker; where its CA is named, over TLS that is verified against that CA.

    Where answers pass through it, HTTP/2 pings find a picker that hangs, and its streams are cut:
    Envoy has no message time-out in full duplex, and begins it anew with each streamed piece. What
    is streamed goes on without the picker then, unless Envoy fails closed; in full duplex it ends.

    Args:
        options: name its address, and the files for TLS.
        body_mode: how bodies go through it.
    """
    host, port = options.picker_address
    http2 = Http2ProtocolOptions(
        initial_stream_window_size=_H2_WINDOW_BYTES,
        initial_connection_window_size=_H2_WINDOW_BYTES,
    )
    if body_mode != "native":
        lossless = body_mode == "streamed" and options.fail_open
        http2.connection_keepalive = KeepaliveSettings(
            interval=_PING_INTERVAL, timeout=_PING_TIMEOUT if lossless else _LONG_PING_TIMEOUT
        )
    return Cluster(
        name=PICKER_CLUSTER,
        type=ClusterDiscoveryType.STATIC if is_ip(host) else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=_CONNECT_TIMEOUT,
        load_assignment=_one_endpoint(PICKER_CLUSTER, host, port),
        circuit_breakers=_circuit_breakers(),
        health_checks=[
            HealthCheck(
                grpc_health_check=HealthCheckGrpcHealthCheck(service_name=PICKING_SERVICE),
                interval=_CHECK_INTERVAL,
                no_traffic_interval=_CHECK_INTERVAL,
                timeout=_CHECK_TIMEOUT,
                unhealthy_threshold=1,
                healthy_threshold=1,
            )
        ],
        # Between two checks the first failed stream shows as much; in full duplex each further one
        # is a lost request. The next check that succeeds lets the picker in again.
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=1,
            enforcing_success_rate=0,
            enforcing_local_origin_success_rate=0,
            base_ejection_time=_CHECK_INTERVAL,
            max_ejection_time=_PICKER_EJECTED,
            interval=_CHECK_INTERVAL,
            max_ejection_percent=100,
        ),
        # Envoy would otherwise try the unhealthy picker when there is no other.
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        transport_socket=None if options.picker_ca_path is None else _verified_tls(host, options),
        # A picker whose machine has gone sends no reset. Probes find out within about 25 s instead
        # of after the message timeout, and unlike HTTP/2 pings no gRPC server refuses them.
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_time=10, keepalive_interval=5, keepalive_probes=3)
        ),
        typed_extension_protocol_options={
            _PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                        http2_protocol_options=http2
                    )
                )
            )
        },
    )


def admin_cluster(admin_port: int) -> Cluster:
    """Envoy's own admin port, which the probe listener opens one path of."""
    return Cluster(
        name=ADMIN_CLUSTER,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=_CONNECT_TIMEOUT,
        load_assignment=_one_endpoint(ADMIN_CLUSTER, "127.0.0.1", admin_port),
    )


def _policy(name: str, config: Message) -> LoadBalancingPolicy:
    return LoadBalancingPolicy(
        policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension(name, config))]
    )


def _undecided() -> Subset:
    """Least request where the picker named no endpoint; nothing where it did."""
    return Subset(
        fallback_policy=SubsetLbSubsetFallbackPolicy.ANY_ENDPOINT,
        subset_selectors=[
            SubsetLbSubsetSelector(
                keys=[DESTINATION],
                fallback_policy=SubsetLbSubsetSelectorLbSubsetSelectorFallbackPolicy.NO_FALLBACK,
            )
        ],
        allow_redundant_keys=True,
        subset_lb_policy=_policy("envoy.load_balancing_policies.least_request", LeastRequest()),
    )


def _lb_key(key: str) -> MetadataKey:
    return MetadataKey(key=LB_NAMESPACE, path=[MetadataKeyPathSegment(key=key)])


def _circuit_breakers(*, retries: bool = False) -> CircuitBreakers:
    thresholds = CircuitBreakersThresholds(
        max_connections=_IN_FLIGHT, max_pending_requests=_IN_FLIGHT, max_requests=_IN_FLIGHT
    )
    if retries:
        thresholds.retry_budget = CircuitBreakersThresholdsRetryBudget(
            budget_percent=Percent(value=_RETRY_SHARE), min_retry_concurrency=_FREE_RETRIES
        )
    return CircuitBreakers(thresholds=[thresholds])


def _one_endpoint(cluster: str, host: str, port: int) -> ClusterLoadAssignment:
    endpoint = Endpoint(address=socket_address(host, port))
    return ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=endpoint)])],
    )


def _verified_tls(host: str, options: BootstrapOptions) -> TransportSocket:
    """TLS to a picker whose certificate comes from its CA and names ``host``."""
    by_ip = is_ip(host)
    own = []
    if options.picker_certificate_path is not None:
        own.append(
            TlsCertificate(
                certificate_chain=DataSource(filename=options.picker_certificate_path),
                private_key=DataSource(filename=options.picker_key_path),
            )
        )
    return TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=Any.pack(
            UpstreamTlsContext(
                sni="" if by_ip else host,
                common_tls_context=CommonTlsContext(
                    alpn_protocols=["h2"],
                    tls_certificates=own,
                    validation_context=CertificateValidationContext(
                        trusted_ca=DataSource(filename=options.picker_ca_path),
                        match_typed_subject_alt_names=[
                            SubjectAltNameMatcher(
                                san_type=(
                                    SubjectAltNameMatcherSanType.IP_ADDRESS
                                    if by_ip
                                    else SubjectAltNameMatcherSanType.DNS
                                ),
                                matcher=StringMatcher(exact=host),
                            )
                        ],
                    ),
                ),
            )
        ),
    )
