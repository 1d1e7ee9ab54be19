"""Write the file from which Envoy reads the endpoints (EDS).

Envoy watches the file's directory and reads the file when another is renamed to it, so the list is
written under a temporary name first, and Envoy never sees a partial one. The bytes depend only on
the set of endpoints, and nothing is written if they are unchanged: a collector may call `write_eds`
on every event.

A single invalid entry makes Envoy reject the whole file and keep its old list, so addresses are
validated here. EDS does not resolve names: hosts are IP addresses.
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
"""Seconds after the rename until Envoy is assumed to have read the file: it takes about 10 ms, more
on a busy machine."""

ENDPOINTS_CLUSTER = "laar-endpoints"
"""Name of the cluster, which must be the same in the file and in the bootstrap."""

METADATA_NAMESPACE = "laar"
TLS_NAMESPACE = "envoy.transport_socket_match"

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAddress:
    """An endpoint as Envoy reaches it.

    Args:
        host: IPv4 or IPv6 address, without brackets.
        port: TCP port.
        metadata: values for Envoy's access log, such as ``model``; not used in choosing.
        name: host name in requests and in the certificate; empty for none.
        ca: CA that verifies the certificate: a PEM file of the bootstrap's `endpoint_cas`, or
            ``system``; None without TLS.

    Raises:
        SettingError: the host is not an IP address, or the port is not in 1 to 65535.
    """

    host: str
    port: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    ca: str | None = None

    def __post_init__(self) -> None:
        if not is_ip(self.host):
            raise SettingError(
                f"endpoint {self.host!r}: Envoy's endpoints file needs IP addresses, not names; "
                "resolve the name first"
            )
        if not 0 < self.port < 65536:
            raise SettingError(f"endpoint {self.host!r}: port {self.port} is not in 1..65535")


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def write_eds(path: Path, endpoints: Sequence[EndpointAddress]) -> bool:
    """Write exactly these endpoints to ``path``; return False if the file is unchanged.

    The directory must exist. Several processes, such as workers, may write one file: the last wins.
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
    """Return the endpoint metadata that select TLS settings in the bootstrap."""
    return {"tls": True, "ca": ca, "named": named}
