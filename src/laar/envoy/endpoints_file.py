"""The file from which Envoy learns which endpoints exist.

Envoy watches the file's directory and reads the file when a rename lands in it, so the whole list
is written under a temporary name first and Envoy never sees half a list. The bytes depend on the
set of endpoints alone, and nothing is written when they are the same: a collector may call
`write_eds` on every event.

An entry Envoy cannot use makes it reject the whole file and keep the list it had; therefore
addresses are checked here. EDS resolves no names: hosts are IP addresses.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import xxhash

from laar.errors import SettingError

ENVOY_LEARNS_S = 0.5
"""Seconds from renaming the file into place to relying on it: Envoy watches it, and takes some 10
ms, more on a machine that is busy."""

ENDPOINTS_CLUSTER = "laar-endpoints"
"""The cluster's name, which the file and the bootstrap have to agree on."""

METADATA_NAMESPACE = "laar"
TLS_NAMESPACE = "envoy.transport_socket_match"

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAddress:
    """One endpoint as Envoy reaches it.

    Args:
        host: IPv4 or IPv6 address, without brackets.
        port: TCP port.
        metadata: facts for Envoy's access log, such as ``model``; they choose nothing.
        name: name of the host in requests, and in its certificate; empty for none.
        ca: authorities that verify its certificate: a PEM file of the bootstrap's
            `endpoint_cas`, or ``system``; None for an endpoint without TLS.

    Raises:
        SettingError: when the host is not an IP address or the port not one of 1 to 65535.
    """

    host: str
    port: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    ca: str | None = None

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError as error:
            raise SettingError(
                f"endpoint {self.host!r}: Envoy's endpoints file takes IP addresses, not names; "
                "resolve the name first"
            ) from error
        if not 0 < self.port < 65536:
            raise SettingError(f"endpoint {self.host!r}: port {self.port} is not in 1..65535")


def write_eds(path: Path, endpoints: Sequence[EndpointAddress]) -> bool:
    """Make ``path`` list exactly these endpoints; False when it already did.

    The directory must exist. Several processes may write one file, as workers do: the last stays.
    """
    content = _discovery_response(endpoints)
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
    return True


def _discovery_response(endpoints: Sequence[EndpointAddress]) -> bytes:
    entries = {(endpoint.host, endpoint.port): endpoint for endpoint in endpoints}
    resource = {
        "@type": _ASSIGNMENT,
        "cluster_name": ENDPOINTS_CLUSTER,
        "endpoints": [{"lb_endpoints": [_lb_endpoint(entries[key]) for key in sorted(entries)]}],
    }
    version = xxhash.xxh64_hexdigest(orjson.dumps(resource, option=orjson.OPT_SORT_KEYS))
    return orjson.dumps(
        {"version_info": version, "resources": [resource]},
        option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
    )


def _lb_endpoint(endpoint: EndpointAddress) -> dict[str, object]:
    address = {"address": endpoint.host, "port_value": endpoint.port}
    reached: dict[str, object] = {"address": {"socket_address": address}}
    if endpoint.name:
        reached["hostname"] = endpoint.name
    entry: dict[str, object] = {"endpoint": reached}
    metadata: dict[str, object] = {}
    if endpoint.metadata:
        metadata[METADATA_NAMESPACE] = dict(endpoint.metadata)
    if endpoint.ca is not None:
        metadata[TLS_NAMESPACE] = tls_match(endpoint.ca, named=bool(endpoint.name))
    if metadata:
        entry["metadata"] = {"filter_metadata": metadata}
    return entry


def tls_match(ca: str, *, named: bool) -> dict[str, object]:
    """Return an endpoint's metadata that match the bootstrap's TLS for it."""
    return {"tls": True, "ca": ca, "named": named}
