"""Values that the doctor writes into Envoy's configuration."""

from __future__ import annotations

from typing import Any

from laar.protocol.agreed import LB_NAMESPACE, PICKING_SERVICE, SUBSET_NAMESPACE
from laar.protocol.headers import DESTINATION, SERVED

Json = dict[str, Any]

NAMESPACES = (LB_NAMESPACE, SUBSET_NAMESPACE)
"""Namespaces of the metadata that Envoy and the picker exchange."""

_POLICIES = "type.googleapis.com/envoy.extensions.load_balancing_policies"
HEALTH_CHECK: Json = {
    "timeout": "1.5s",
    "interval": "0.25s",
    "no_traffic_interval": "0.25s",
    "unhealthy_threshold": 1,
    "healthy_threshold": 1,
    "grpc_health_check": {"service_name": PICKING_SERVICE},
}

PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
"""Key of a cluster's HTTP options."""
HTTP2_OPTIONS: Json = {
    "@type": f"type.googleapis.com/{PROTOCOL_OPTIONS}",
    "explicit_http_config": {"http2_protocol_options": {}},
}


def key(name: str) -> Json:
    """A place in the metadata that the picker sets."""
    return {"key": NAMESPACES[0], "path": [{"key": name}]}


def fallback() -> Json:
    """Any endpoint where the picker named none, and none where it did."""
    least = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": f"{_POLICIES}.least_request.v3.LeastRequest"},
    }
    subset = {
        "@type": f"{_POLICIES}.subset.v3.Subset",
        "fallback_policy": "ANY_ENDPOINT",
        "subset_selectors": [{"keys": [DESTINATION], "fallback_policy": "NO_FALLBACK"}],
        "allow_redundant_keys": True,
        "subset_lb_policy": {"policies": [{"typed_extension_config": least}]},
    }
    name = "envoy.load_balancing_policies.subset"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": subset}}]}


def override_host() -> Json:
    """The policy that follows the picker."""
    override = {
        "@type": f"{_POLICIES}.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}, {"metadata": key(DESTINATION)}],
        "selected_host_key": key(SERVED),
        "fallback_policy": fallback(),
    }
    name = "envoy.load_balancing_policies.override_host"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": override}}]}
