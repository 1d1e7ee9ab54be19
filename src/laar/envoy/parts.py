"""Helpers for recurring parts of Envoy's configuration, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from laar.protocol.agreed import LB_NAMESPACE

Json: TypeAlias = dict[str, object]


def typed(kind: str, **fields: object) -> Json:
    """Return a message with its type; `kind` is the type's name after ``envoy.``."""
    return {"@type": f"type.googleapis.com/envoy.{kind}", **fields}


def extension(name: str, kind: str, **fields: object) -> Json:
    """Return an extension and its configuration; `name` and `kind` are names after ``envoy.``."""
    return {"name": f"envoy.{name}", "typed_config": typed(kind, **fields)}


def duration(seconds: float) -> str:
    """Return a duration in Envoy's notation."""
    return f"{seconds:g}s"


def socket_address(host: str, port: int) -> Json:
    """Return a TCP address; `host` is an IP address or, for the picker, a DNS name.

    ``::`` accepts clients over IPv4 as well, as in laar's listeners.
    """
    families = {"ipv4_compat": True} if host == "::" else {}
    return {"socket_address": {"address": host, "port_value": port, **families}}


def set_headers(headers: Mapping[str, str]) -> list[Json]:
    """Return mutations that set these headers, overwriting existing ones."""
    return [
        {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for name, value in headers.items()
    ]


def lb_key(key: str) -> Json:
    """Return the path of a value in the metadata that the picker sets."""
    return {"key": LB_NAMESPACE, "path": [{"key": key}]}
