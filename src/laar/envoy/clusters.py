"""The two clusters of a laar Envoy: the endpoints that serve models, and the picker itself.

**Endpoints** are an EDS cluster read from a file that is replaced by rename, so membership changes
without a restart and an address outside the file can never be reached, whoever names it. Its
``override_host`` policy takes the picker's ordered list from the request header, then from the
``envoy.lb`` metadata; when there is no list, or all of it has failed, least request chooses.

**The picker** speaks HTTP/2. Each request in flight holds one ext_proc stream for its whole life,
hence the circuit breakers far above Envoy's 1,024 and the wide HTTP/2 windows.

The picker's port is also probed every second, by a mere connect that a busy picker still answers.
Once it refuses, streams to it fail before any byte of a body is sent, so that failing open works
in every body mode and costs no connect timeout. The endpoints are not probed: whoever picks knows
more about them.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ApiVersion,
    ConfigSource,
    DataSource,
    HealthCheck,
    HealthCheckTcpHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
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
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
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

DESTINATION_HEADER = "x-gateway-destination-endpoint"
SERVED_KEY = "x-gateway-destination-endpoint-served"
LB_NAMESPACE = "envoy.lb"
PICKER_CLUSTER = "laar-picker"
ADMIN_CLUSTER = "admin"

_CONNECT_TIMEOUT = timedelta(seconds=1)
_PROBE_INTERVAL = timedelta(seconds=1)
_PROBE_TIMEOUT = timedelta(seconds=2)
"""One lost packet of the connect is sent again within it."""

_IN_FLIGHT = 100_000
"""Requests, connections and retries at once, per cluster: no limit in practice, yet a limit."""

_H2_WINDOW_BYTES = 16 * 1024 * 1024
_ENDPOINT_IDLE = timedelta(seconds=4)
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request written to
a connection that is just being closed cannot be retried safely, so Envoy has to close first."""

_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def extension(name: str, config: Message) -> TypedExtensionConfig:
    """A named Envoy extension with its typed configuration."""
    return TypedExtensionConfig(name=name, typed_config=Any.pack(config))


def socket_address(host: str, port: int) -> Address:
    """A TCP address; ``host`` is an IP address or, for the picker, a DNS name."""
    return Address(socket_address=SocketAddress(address=host, port_value=port))


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
                    OverrideHostOverrideHostSource(header=DESTINATION_HEADER),
                    OverrideHostOverrideHostSource(metadata=_lb_key(DESTINATION_HEADER)),
                ],
                selected_host_key=_lb_key(SERVED_KEY),
                fallback_policy=_policy(
                    "envoy.load_balancing_policies.least_request", LeastRequest()
                ),
            ),
        ),
        circuit_breakers=_circuit_breakers(),
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


def picker_cluster(host: str, port: int, ca_path: str | None) -> Cluster:
    """The picker at ``host:port``; with ``ca_path``, over TLS that is verified against that CA."""
    return Cluster(
        name=PICKER_CLUSTER,
        type=ClusterDiscoveryType.STATIC if _is_ip(host) else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=_CONNECT_TIMEOUT,
        load_assignment=_one_endpoint(PICKER_CLUSTER, host, port),
        circuit_breakers=_circuit_breakers(),
        health_checks=[
            HealthCheck(
                tcp_health_check=HealthCheckTcpHealthCheck(),
                interval=_PROBE_INTERVAL,
                no_traffic_interval=_PROBE_INTERVAL,
                timeout=_PROBE_TIMEOUT,
                unhealthy_threshold=1,
                healthy_threshold=1,
            )
        ],
        # Envoy would otherwise try the unhealthy picker when there is no other.
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        transport_socket=None if ca_path is None else _verified_tls(host, ca_path),
        # A picker whose machine has gone sends no reset. Probes find out within about 25 s instead
        # of after the message timeout, and unlike HTTP/2 pings no gRPC server refuses them.
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_time=10, keepalive_interval=5, keepalive_probes=3)
        ),
        typed_extension_protocol_options={
            _PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                        http2_protocol_options=Http2ProtocolOptions(
                            initial_stream_window_size=_H2_WINDOW_BYTES,
                            initial_connection_window_size=_H2_WINDOW_BYTES,
                        )
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


def _lb_key(key: str) -> MetadataKey:
    return MetadataKey(key=LB_NAMESPACE, path=[MetadataKeyPathSegment(key=key)])


def _circuit_breakers() -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=_IN_FLIGHT,
                max_pending_requests=_IN_FLIGHT,
                max_requests=_IN_FLIGHT,
                max_retries=_IN_FLIGHT,
            )
        ]
    )


def _one_endpoint(cluster: str, host: str, port: int) -> ClusterLoadAssignment:
    endpoint = Endpoint(address=socket_address(host, port))
    return ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=endpoint)])],
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _verified_tls(host: str, ca_path: str) -> TransportSocket:
    """TLS to a picker whose certificate comes from that CA and names ``host``."""
    by_ip = _is_ip(host)
    return TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=Any.pack(
            UpstreamTlsContext(
                sni="" if by_ip else host,
                common_tls_context=CommonTlsContext(
                    alpn_protocols=["h2"],
                    validation_context=CertificateValidationContext(
                        trusted_ca=DataSource(filename=ca_path),
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
