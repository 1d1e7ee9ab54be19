"""Envoy bootstraps as laar renders them, and as Gateway API gateways configure theirs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from laar.envoy import bootstrap as laars
from laar.envoy.options import BootstrapOptions, Shape
from laar.protocol import headers as names
from laar.protocol.agreed import ATTEMPTS, LONG_BODIES

AnyShape: TypeAlias = Shape | Literal["full-duplex"]

_BOTH_WAYS = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
_EXT_PROC = "envoy.filters.http.ext_proc"
_BUFFER = "envoy.filters.http.buffer"
_LONG_PING_TIMEOUT = "12s"


def render(shape: AnyShape, options: BootstrapOptions) -> dict[str, Any]:
    """Return a bootstrap as plain JSON values.

    The ``full-duplex`` shape is a gateway that sends every chunk of both bodies to the picker and
    receives it back, as Gateway API gateways configure one. Envoy keeps no copy of a body, so a
    request whose body is with the picker when it dies gets 503, even if Envoy fails open. With
    retries Envoy 1.40 sends the body of a request with trailers twice (Envoy issue 45470).
    """
    if shape != "full-duplex":
        return laars.render(shape, options)
    rendered = laars.render("gateway", options)
    resources = rendered["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    *filters, router = manager["http_filters"]
    (ext_proc,) = [each for each in filters if each["name"] == _EXT_PROC]
    manager["http_filters"] = [ext_proc, router]
    ext_proc["typed_config"] |= {
        "processing_mode": _BOTH_WAYS,
        "allow_mode_override": False,
        "request_attributes": [names.POOL, ATTEMPTS],
    }
    for host in manager["route_config"]["virtual_hosts"]:
        host["routes"] = [
            route
            for route in host["routes"]
            if _BUFFER not in route.get("typed_per_filter_config", {})
            and route.get("route", {}).get("cluster") != LONG_BODIES
        ]
        for route in host["routes"]:
            if "route" in route:  # others' gateways don't say that they failed open
                route.pop("response_headers_to_add", None)
            if (own := route.get("typed_per_filter_config", {}).get(_EXT_PROC)) is not None:
                own["overrides"] = {}
    for cluster in resources["clusters"]:
        for protocol in cluster.get("typed_extension_protocol_options", {}).values():
            http2 = protocol["explicit_http_config"].get("http2_protocol_options", {})
            if "connection_keepalive" in http2:
                http2["connection_keepalive"]["timeout"] = _LONG_PING_TIMEOUT
    return rendered
