"""Envoys that call a picker as other projects' gateways do, with none of laar's own conventions.

The habits are those of docs/guides/gateways.md, written by hand after real configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_TYPE = "@type"
_FILTERS = "type.googleapis.com/envoy.extensions.filters"
_POLICIES = "envoy.load_balancing_policies"
DESTINATION = "x-gateway-destination-endpoint"
OBJECTIVE = "x-gateway-inference-objective"
IMPATIENT, REFUSED = "x-impatient", "x-refused"

Reads = Literal["header", "metadata", "subset"]


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a gateway calls a picker.

    Args:
        reads: where it reads the destination: one address in the header, a list in the metadata, or
            the whole text of the metadata as one address.
        bodies: the body modes of requests and answers.
        asks: the number of filters that call the picker for one request.
        served: it passes metadata to the picker, such as the endpoint that served.
        buffers: a filter of its own collects the body first, and recomputes the route afterwards.
        hides: it keeps Envoy's own headers from the client.
    """

    reads: Reads = "header"
    bodies: tuple[str, str] = ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")
    asks: int = 1
    served: bool = False
    buffers: bool = False
    hides: bool = True


GATEWAYS = {
    "ai-gateway": Habits(),
    "ai-gateway, three matches": Habits(asks=3),
    "ai-gateway, buffered": Habits(bodies=("BUFFERED", "BUFFERED")),
    "ai-gateway, AIGatewayRoute": Habits(buffers=True),
    "istio": Habits(reads="metadata", served=True, hides=False),
    "kgateway": Habits(reads="subset", hides=False),
}


def bootstrap(
    habits: Habits,
    picker: str,
    members: Sequence[str],
    *,
    other: str = "",
) -> dict[str, Any]:
    """Return the bootstrap of a gateway with a pool of these members.

    Requests with an objective go to the pool, and all others too unless there is an `other`
    endpoint, which no picker chooses. The gateway itself gives up early on those with the header
    `IMPATIENT`, and refuses those with `REFUSED`.
    """
    full = {"circuit_breakers": {"thresholds": [{"max_requests": 0}]}, "name": "full"}
    pool = _pool(habits, members)
    clusters = [pool, pool | full, _picker(picker), _static("other", [other or "127.0.0.1:1"])]
    routes = [
        _route("full", REFUSED),
        _route("pool", IMPATIENT, "0.3s"),
        _route("pool", OBJECTIVE),
        _route("other" if other else "pool"),
    ]
    filters = [_ext_proc(habits, number) for number in range(habits.asks)]
    if habits.buffers:
        buffer = {_TYPE: f"{_FILTERS}.http.buffer.v3.Buffer", "max_request_bytes": 1 << 20}
        state = {_TYPE: f"{_FILTERS}.http.set_filter_state.v3.Config", "clear_route_cache": True}
        filters.insert(0, {"name": "buffer", "typed_config": buffer})
        filters.append({"name": "recompute", "typed_config": state})
    router = {
        _TYPE: f"{_FILTERS}.http.router.v3.Router",
        "suppress_envoy_headers": habits.hides,
    }
    manager = {
        _TYPE: f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [*filters, {"name": "router", "typed_config": router}],
    }
    chain = {"filters": [{"name": "manager", "typed_config": manager}]}
    listener = {"name": "data", "address": _address("127.0.0.1:0"), "filter_chains": [chain]}
    return {
        "admin": {"address": _address("127.0.0.1:0")},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _route(cluster: str, header: str = "", timeout: str = "600s") -> dict[str, Any]:
    headers = [{"name": header, "present_match": True}] if header else []
    match = {"prefix": "/", "headers": headers}
    return {"match": match, "route": {"cluster": cluster, "timeout": timeout}}


def _address(text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _ext_proc(habits: Habits, number: int) -> dict[str, Any]:
    request, answer = habits.bodies
    config: dict[str, Any] = {
        _TYPE: f"{_FILTERS}.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "300s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": request,
            "response_header_mode": "SEND",
            "response_body_mode": answer,
            "request_trailer_mode": "SEND" if request.startswith("FULL") else "SKIP",
            "response_trailer_mode": "SEND" if answer.startswith("FULL") else "SKIP",
        },
    }
    if habits.reads != "header":
        spaces = {"receiving_namespaces": {"untyped": ["envoy.lb"]}}
        if habits.served:
            spaces["forwarding_namespaces"] = {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
        config["metadata_options"] = spaces
    return {"name": f"picker-{number}", "typed_config": config}


def _static(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    listed = [
        {
            "endpoint": {"address": _address(address)},
            "metadata": {"filter_metadata": {"envoy.lb": {DESTINATION: address}}},
        }
        for address in addresses
    ]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": listed}]}
    return {"name": name, "type": "STATIC", "load_assignment": assignment}


def _picker(address: str) -> dict[str, Any]:
    options = {
        _TYPE: "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    extension = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return _static("picker", [address]) | {"typed_extension_protocol_options": {extension: options}}


def _pool(habits: Habits, members: Sequence[str]) -> dict[str, Any]:
    if habits.reads == "header":
        by_header = {"use_http_header": True, "http_header_name": DESTINATION}
        return {
            "name": "pool",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": by_header,
        }
    pool = _static("pool", members)
    if habits.reads == "subset":
        selectors = [{"keys": [DESTINATION]}]
        subset = {"fallback_policy": "ANY_ENDPOINT", "subset_selectors": selectors}
        return pool | {"lb_policy": "RANDOM", "lb_subset_config": subset}

    def policy(name: str, kind: str, **config: Any) -> dict[str, Any]:
        typed = {
            _TYPE: f"type.googleapis.com/envoy.extensions.load_balancing_policies.{kind}",
            **config,
        }
        return {
            "policies": [
                {"typed_extension_config": {"name": f"{_POLICIES}.{name}", "typed_config": typed}}
            ]
        }

    destination = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}
    served = {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]}
    return pool | {
        "load_balancing_policy": policy(
            "override_host",
            "override_host.v3.OverrideHost",
            override_host_sources=[{"metadata": destination}],
            selected_host_key=served,
            fallback_policy=policy("round_robin", "round_robin.v3.RoundRobin"),
        )
    }
