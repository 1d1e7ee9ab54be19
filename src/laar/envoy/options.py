"""The options of a bootstrap, and the numbers that its parts share."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from laar.errors import SettingError
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.headers import FAIRNESS

Shape: TypeAlias = Literal["sidecar", "standalone", "gateway"]
BodyMode: TypeAlias = Literal["native", "streamed", "full-duplex"]

MESSAGE_TIMEOUT_S = 1.8
"""Seconds until Envoy gives the picker up, which decides in milliseconds; a held request gets more.
With the time that Envoy needs to go on without it, no request waits 2 s for a picker that hangs."""

RETRY_ON = "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes"
RETRIED = (429, 500, 502, 503, 504)
"""Failures after which another endpoint is tried, as long as no byte of an answer has come."""

ANY_IPV4 = "0.0.0.0"  # noqa: S104 - a gateway is there to be reached
_LOOPBACK = "127.0.0.1"
_MAX_RETRIES = 10
_MAX_MESSAGE_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """The options of a bootstrap.

    Args:
        picker: ``host:port`` of the picker's ext_proc server; IPv6 in brackets. A DNS name is
            resolved again and again, and requests spread over all of its addresses.
        picker_ca_path: PEM file of the CA of the picker's certificate; None speaks plain HTTP/2,
            right for a picker on the same machine or pod.
        picker_certificate_path: PEM file of the certificate that Envoy shows to a picker that asks
            for one; with `picker_key_path` and `picker_ca_path`.
        picker_key_path: PEM file of its key.
        listen_port: port for requests; 0 lets the kernel choose.
        ready_port: port of ``/ready`` and ``/stats/prometheus``, on all addresses.
        admin_port: Envoy's admin interface, on loopback only; 0 leaves ``/stats/prometheus`` out of
            reach, as it stands for this port.
        eds_path: absolute path of the endpoints file; its directory is watched for renames.
        endpoint_cas: the authorities that verify endpoints with TLS: PEM files as the endpoints
            file names them, and `SYSTEM_CA`.
        body_mode: how bodies go through the picker; None takes the shape's own.
        fail_open: without a picker, let Envoy choose (True) or answer 503 (False).
        max_body_bytes: requests whose body is larger get 413. Envoy holds each body whole while
            the picker decides; in full-duplex mode, where it does not, the picker has to refuse.
        longest_hold_s: longest time the picker's queue may hold a request, which it asks Envoy
            for. 0 to 3,590. A picker that asks for nothing counts as down after 2 s.
        tenant_header: header by which flow control distinguishes tenants; the picker's
            `flow.tenant_header`.
        request_timeout_s: longest time for a whole exchange.
        idle_timeout_s: longest silence within one, where the picker does not know better: an
            answer that is not streamed is silent until its last token, 36,000 of them at 20 a
            second in the default.
        retries: further attempts after one that failed before its answer began. 0 to 10.
        listen_host: IP address that requests and probes come in at; None takes the shape's own.
        trust_gateway_headers: let clients set their tenant, the urgency of a request and the model
            that shall answer: right where a gateway in front sets these headers for them. None:
            only the sidecar's client.

    Raises:
        SettingError: a value is out of range.
    """

    picker: str = "127.0.0.1:9002"
    picker_ca_path: str | None = None
    picker_certificate_path: str | None = None
    picker_key_path: str | None = None
    listen_port: int = 8080
    ready_port: int = 19001
    admin_port: int = 19000
    eds_path: str = "/run/laar/envoy/endpoints.json"
    endpoint_cas: tuple[str, ...] = ()
    body_mode: BodyMode | None = None
    fail_open: bool = True
    max_body_bytes: int = 32 * 1024 * 1024
    longest_hold_s: float = 60.0
    tenant_header: str = FAIRNESS
    request_timeout_s: float = 3600.0
    idle_timeout_s: float = 1800.0
    retries: int = 2
    listen_host: str | None = None
    trust_gateway_headers: bool | None = None

    def __post_init__(self) -> None:
        _ = self.picker_address
        pair = {self.picker_certificate_path is None, self.picker_key_path is None}
        if len(pair) > 1 or (self.picker_ca_path is None and pair == {False}):
            raise SettingError(
                "picker_certificate_path, picker_key_path: give both, and picker_ca_path as well"
            )
        for name in ("listen_port", "ready_port", "admin_port"):
            if not 0 <= getattr(self, name) < 65536:
                raise SettingError(f"{name}: {getattr(self, name)} is not in 0..65535")
        if not Path(self.eds_path).is_absolute():
            raise SettingError(f"eds_path: {self.eds_path!r} must be an absolute path")
        if not 0 < self.max_body_bytes < 2**32:
            raise SettingError(f"max_body_bytes: {self.max_body_bytes} is not in 1..{2**32 - 1}")
        if not 0 <= self.longest_hold_s <= _MAX_MESSAGE_TIMEOUT_S - DECISION_MARGIN_S:
            raise SettingError(
                f"longest_hold_s: {self.longest_hold_s} is not in 0..3590; "
                "Envoy waits at most 3600 s for a picker"
            )
        for name in ("request_timeout_s", "idle_timeout_s"):
            if getattr(self, name) <= 0:
                raise SettingError(f"{name}: {getattr(self, name)} must be positive")
        if not 0 <= self.retries <= _MAX_RETRIES:
            raise SettingError(f"retries: {self.retries} is not in 0..{_MAX_RETRIES}")
        if self.listen_host is not None and not is_ip(self.listen_host):
            raise SettingError(f"listen_host: {self.listen_host!r} is not an IP address")

    @property
    def picker_address(self) -> tuple[str, int]:
        """Host and port of the picker."""
        parts = urlsplit(f"//{self.picker}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or not port or parts.netloc != self.picker:
            raise SettingError(f"picker: {self.picker!r} is not host:port")
        return host, port

    @property
    def longest_answer_s(self) -> float:
        """How long Envoy waits for the picker's answer to a request that is held, at most."""
        return self.longest_hold_s + DECISION_MARGIN_S

    def data_host(self, shape: Shape) -> str:
        """IP address that requests come in at."""
        return self.listen_host or (_LOOPBACK if shape == "sidecar" else ANY_IPV4)


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
