"""The two clusters of laar's Envoy: the endpoints that serve models, and the picker.

**Endpoints** are an EDS cluster read from a file that is replaced by rename. So membership changes
without a restart, and no header can reach an address outside the file. Its ``override_host`` policy
reads the picker's ordered list from the request header, then from the ``envoy.lb`` metadata.
Without a list, least request chooses among all endpoints. If Envoy knows no endpoint of the list,
none is chosen, since others serve other models. To that end the fallback policy is a subset policy:
a request whose metadata has a destination requires endpoints labelled with it, and there are none.

Outlier detection only affects least request, and thus failing open: ``override_host`` sends
requests to ejected hosts too, so it never contradicts the picker's circuit breaker.

**The picker** speaks HTTP/2. Each request in flight holds one ext_proc stream until it ends, hence
the circuit breakers far above Envoy's 1,024 and the wide HTTP/2 windows.

Envoy also checks the picker's health by gRPC four times a second. A picker that shuts down reports
NOT_SERVING and gets no new streams before its port closes; one that is gone or hangs is ejected
within two seconds. Streams to it then fail before any byte of a body is sent, so failing open works
in every body mode and costs no timeout. Envoy does not probe endpoints: the picker knows more about
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from laar.core.membership import SYSTEM_CA
from laar.datalayer.endpoints_file import is_ip
from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, tls_match
from laar.envoy.options import BootstrapOptions
from laar.envoy.parts import Json, duration, extension, lb_key, socket_address, typed
from laar.protocol.agreed import PICKING_SERVICE
from laar.protocol.headers import DESTINATION, SERVED

PICKER_CLUSTER = "laar-picker"
ADMIN_CLUSTER = "admin"

_SYSTEM_CA_PATH = "/etc/ssl/certs/ca-certificates.crt"
"""The system's CAs in Debian, Ubuntu, Alpine, and Envoy's images."""

_CONNECT_TIMEOUT = duration(1)
_CHECK_INTERVAL = duration(0.25)
_CHECK_TIMEOUT = duration(1.5)
"""Under 2 s together with the interval: a picker that hangs is ejected by then, but not one that is
busy for a second."""

HEALTH_CHECK: Json = {
    "grpc_health_check": {"service_name": PICKING_SERVICE},
    "interval": _CHECK_INTERVAL,
    "no_traffic_interval": _CHECK_INTERVAL,
    "timeout": _CHECK_TIMEOUT,
    "unhealthy_threshold": 1,
    "healthy_threshold": 1,
}

_PING_INTERVAL = duration(0.5)
_PING_TIMEOUT = duration(1.5)
_LONG_PING_TIMEOUT = duration(12)
"""Timeout if cutting a stream loses an answer: a picker that recovers within 10 s is kept."""

_IN_FLIGHT = 100_000
"""Maximum concurrent requests and connections per cluster: practically unlimited, yet bounded."""

_RETRY_BUDGET: Json = {"budget_percent": {"value": 25}, "min_retry_concurrency": 100}
"""Maximum concurrent retries: the given number, or the share of requests in flight if larger. Other
failed requests are not retried."""

_H2_WINDOW_BYTES = 16 * 1024 * 1024
_ENDPOINT_IDLE = duration(4)
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request written to a
closing connection can't be retried safely, so Envoy has to close first."""


def endpoints_cluster(options: BootstrapOptions) -> Json:
    """Return the cluster of endpoints, which are read from their file and chosen by the picker."""
    eds_path = options.eds_path
    return {
        "name": ENDPOINTS_CLUSTER,
        "type": "EDS",
        "connect_timeout": _CONNECT_TIMEOUT,
        "eds_cluster_config": {
            "eds_config": {
                "path_config_source": {
                    "path": eds_path,
                    "watched_directory": {"path": str(PurePath(eds_path).parent)},
                },
                "resource_api_version": "V3",
            }
        },
        "transport_socket_matches": tls_matches(options.endpoint_cas),
        "load_balancing_policy": override_host(),
        "circuit_breakers": _circuit_breakers(retry_budget=_RETRY_BUDGET),
        "outlier_detection": {
            "interval": duration(1),
            "base_ejection_time": duration(5),
            "max_ejection_time": duration(30),
            "max_ejection_percent": 50,
            # A success rate reflects the requests as much as the endpoint.
            "enforcing_success_rate": 0,
        },
        "typed_extension_protocol_options": http_options(
            common_http_protocol_options={"idle_timeout": _ENDPOINT_IDLE},
            explicit_http_config={"http_protocol_options": {}},
        ),
    }


def picker_cluster(options: BootstrapOptions, *, streamed: bool) -> Json:
    """Return the picker's cluster; if a CA is set, with TLS verified against it.

    If answers pass through the picker (`streamed`), HTTP/2 pings detect one that hangs, and its
    streams are cut: each piece restarts Envoy's message timeout. The answers then continue without
    the picker, unless Envoy fails closed.
    """
    host, port = options.picker_address
    http2: Json = {
        "initial_stream_window_size": _H2_WINDOW_BYTES,
        "initial_connection_window_size": _H2_WINDOW_BYTES,
    }
    if streamed:
        http2["connection_keepalive"] = {
            "interval": _PING_INTERVAL,
            "timeout": _PING_TIMEOUT if options.fail_open else _LONG_PING_TIMEOUT,
        }
    cluster: Json = {
        "name": PICKER_CLUSTER,
        "type": "STATIC" if is_ip(host) else "STRICT_DNS",
        "connect_timeout": _CONNECT_TIMEOUT,
        "load_assignment": _one_endpoint(PICKER_CLUSTER, host, port),
        "circuit_breakers": _circuit_breakers(),
        "health_checks": [HEALTH_CHECK],
        # Between two checks the first failed stream ejects the picker, so that no others fail. The
        # next successful check readmits it.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "base_ejection_time": _CHECK_INTERVAL,
            "max_ejection_time": duration(1),
            "interval": _CHECK_INTERVAL,
            "max_ejection_percent": 100,
        },
        # Otherwise Envoy would use an unhealthy picker if there is no other.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # A picker whose machine is gone sends no reset. TCP probes detect that within about 25 s
        # instead of after the message timeout, and unlike HTTP/2 pings no gRPC server rejects them.
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": 10,
                "keepalive_interval": 5,
                "keepalive_probes": 3,
            }
        },
        "typed_extension_protocol_options": http_options(
            explicit_http_config={"http2_protocol_options": http2}
        ),
    }
    if options.picker_ca_path is not None:
        cluster["transport_socket"] = _verified_tls(host, options)
    return cluster


def admin_cluster(admin_port: int) -> Json:
    """Return the cluster of Envoy's admin port; the probe listener exposes one path."""
    return {
        "name": ADMIN_CLUSTER,
        "type": "STATIC",
        "connect_timeout": _CONNECT_TIMEOUT,
        "load_assignment": _one_endpoint(ADMIN_CLUSTER, "127.0.0.1", admin_port),
    }


def override_host() -> Json:
    """Return the load-balancing policy that follows the picker's choice."""
    return _policy(
        "override_host",
        "OverrideHost",
        override_host_sources=[{"header": DESTINATION}, {"metadata": lb_key(DESTINATION)}],
        selected_host_key=lb_key(SERVED),
        fallback_policy=fallback(),
    )


def fallback() -> Json:
    """Return the policy that chooses any endpoint if the picker named none, and none if it did."""
    return _policy(
        "subset",
        "Subset",
        fallback_policy="ANY_ENDPOINT",
        subset_selectors=[{"keys": [DESTINATION], "fallback_policy": "NO_FALLBACK"}],
        allow_redundant_keys=True,
        subset_lb_policy=_policy("least_request", "LeastRequest"),
    )


def _policy(name: str, kind: str, **fields: object) -> Json:
    full_name = f"load_balancing_policies.{name}"
    config = extension(full_name, f"extensions.{full_name}.v3.{kind}", **fields)
    return {"policies": [{"typed_extension_config": config}]}


def http_options(**fields: object) -> dict[str, Json]:
    """Return a cluster's HTTP options under their key."""
    kind = "extensions.upstreams.http.v3.HttpProtocolOptions"
    return {f"envoy.{kind}": typed(kind, **fields)}


def _circuit_breakers(**fields: object) -> Json:
    limits = ("max_connections", "max_pending_requests", "max_requests")
    return {"thresholds": [{**dict.fromkeys(limits, _IN_FLIGHT), **fields}]}


def _one_endpoint(cluster: str, host: str, port: int) -> Json:
    endpoint = {"endpoint": {"address": socket_address(host, port)}}
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [endpoint]}]}


def tls_matches(cas: Sequence[str]) -> list[Json]:
    """Return TLS matches for endpoints whose metadata names the CAs to verify them with.

    An endpoint whose CA is not listed can't be reached at all, not even over plain HTTP.
    """
    nobody = _upstream_tls({"validation_context": {"verify_certificate_hash": ["00" * 32]}})
    matches: list[Json] = [
        {
            "name": f"{ca} {'by name' if named else 'without a name'}",
            "match": tls_match(ca, named=named),
            "transport_socket": _endpoint_tls(ca, named=named),
        }
        for ca in cas
        for named in (True, False)
        if named or ca != SYSTEM_CA
    ]
    return [*matches, {"name": "unknown", "match": {"tls": True}, "transport_socket": nobody}]


def _endpoint_tls(ca: str, *, named: bool) -> Json:
    """Return TLS for endpoints with certificates from `ca`; verify host names if `named`."""
    path = _SYSTEM_CA_PATH if ca == SYSTEM_CA else ca
    by_name = {"auto_host_sni": True, "auto_sni_san_validation": True} if named else {}
    authorities: Json = {"trusted_ca": {"filename": path}}
    common: Json = {"alpn_protocols": ["http/1.1"], "validation_context": authorities}
    return _upstream_tls(common, **by_name)


def _verified_tls(host: str, options: BootstrapOptions) -> Json:
    """Return TLS for a picker whose certificate is issued by its CA for `host`."""
    by_ip = is_ip(host)
    name = {"san_type": "IP_ADDRESS" if by_ip else "DNS", "matcher": {"exact": host}}
    common: Json = {
        "alpn_protocols": ["h2"],
        "validation_context": {
            "trusted_ca": {"filename": options.picker_ca_path},
            "match_typed_subject_alt_names": [name],
        },
    }
    if options.picker_certificate_path is not None:
        common["tls_certificates"] = [
            {
                "certificate_chain": {"filename": options.picker_certificate_path},
                "private_key": {"filename": options.picker_key_path},
            }
        ]
    return _upstream_tls(common, **({} if by_ip else {"sni": host}))


def _upstream_tls(common: Json, **fields: object) -> Json:
    return extension(
        "transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context=common,
        **fields,
    )
