"""Options of a bootstrap, and constants shared by its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from laar.envoy.endpoints_file import is_ip
from laar.errors import SettingError
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.headers import FAIRNESS

Shape: TypeAlias = Literal["sidecar", "standalone", "gateway"]
BodyMode: TypeAlias = Literal["native", "streamed", "full-duplex"]

MESSAGE_TIMEOUT_S = 1.8
"""Seconds after which Envoy gives up on the picker, which decides in milliseconds; held requests
get more. Including the time to continue without it, no request waits 2 s for a hanging picker."""

RETRY_ON = "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes"
RETRIED = (429, 500, 502, 503, 504)
"""Statuses after which another endpoint is tried, unless part of an answer was sent."""

ANY_IPV4 = "0.0.0.0"  # noqa: S104 - gateways must be reachable
_LOOPBACK = "127.0.0.1"
_MAX_RETRIES = 10
_MAX_MESSAGE_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """The options of a bootstrap.

    Args:
        picker: ``host:port`` of the picker's ext_proc server; IPv6 in brackets. A DNS name is
            re-resolved regularly, and requests are spread over all its addresses.
        picker_ca_path: PEM file of the CA of the picker's certificate; None uses plain HTTP/2,
            suitable for a picker on the same machine or in the same pod.
        picker_certificate_path: PEM file of Envoy's client certificate for the picker; requires
            `picker_key_path` and `picker_ca_path`.
        picker_key_path: PEM file of the key of that certificate.
        listen_port: port for requests; 0 lets the kernel choose.
        ready_port: port of ``/ready`` and ``/stats/prometheus``, on all addresses.
        admin_port: Envoy's admin interface, on loopback only; with 0 ``/stats/prometheus`` is
            unreachable, since it proxies to this port.
        eds_path: absolute path of the endpoints file; its directory is watched for renames.
        endpoint_cas: the CAs that verify endpoints with TLS: PEM files as named in the endpoints
            file, or `SYSTEM_CA`.
        body_mode: how bodies pass through the picker; None uses the shape's default.
        fail_open: without a picker, let Envoy choose (True) or answer 503 (False).
        max_body_bytes: maximum body; larger ones get 413. Envoy buffers each body while the picker
            decides; in full-duplex mode it does not, and the picker refuses instead.
        longest_hold_s: maximum seconds, 0 to 3,590, for which the picker may ask Envoy to wait for
            a request in its queue. Without being asked, Envoy gives up on the picker after 2 s.
        tenant_header: header by which flow control distinguishes tenants; the picker's
            `flow.tenant_header`.
        request_timeout_s: maximum duration of a whole exchange.
        idle_timeout_s: maximum silence within an exchange, unless the picker sets one. An
            unstreamed answer is silent until its last token; the default allows 36,000 tokens at
            20 per second.
        retries: maximum retries, 0 to 10, of attempts that fail before their answer begins.
        listen_host: IP address to listen on for requests and probes; None uses the shape's default.
        trust_gateway_headers: accept tenant, objective and model headers from clients, as needed
            behind a gateway that sets them. None: only in the sidecar shape.

    Raises:
        SettingError: a value is out of range; names the option of `laar envoy`.
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
                "--picker-certificate, --picker-key: give both, and --picker-ca as well"
            )
        for name in ("listen_port", "ready_port", "admin_port"):
            if not 0 <= getattr(self, name) < 65536:
                option = name.replace("_", "-")
                raise SettingError(f"--{option}: {getattr(self, name)} is not in 0..65535")
        if not Path(self.eds_path).is_absolute():
            raise SettingError(f"--eds-file: {self.eds_path!r} must be an absolute path")
        if not 0 < self.max_body_bytes < 2**32:
            raise SettingError(f"--max-body-bytes: {self.max_body_bytes} is not in 1..{2**32 - 1}")
        if not 0 <= self.longest_hold_s <= _MAX_MESSAGE_TIMEOUT_S - DECISION_MARGIN_S:
            raise SettingError(
                f"--longest-hold: {self.longest_hold_s} is not in 0..3590; "
                "Envoy waits at most 3600 s for a picker"
            )
        if not all(
            0 < limit_s < math.inf for limit_s in (self.request_timeout_s, self.idle_timeout_s)
        ):
            raise SettingError("--request-timeout, --idle-timeout: must be finite and above 0")
        if not 0 <= self.retries <= _MAX_RETRIES:
            raise SettingError(f"--retries: {self.retries} is not in 0..{_MAX_RETRIES}")
        if self.listen_host is not None and not is_ip(self.listen_host):
            raise SettingError(f"--listen-address: {self.listen_host!r} is not an IP address")

    @property
    def picker_address(self) -> tuple[str, int]:
        """Host and port of the picker."""
        parts = urlsplit(f"//{self.picker}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or not port or parts.netloc != self.picker:
            raise SettingError(f"--picker: {self.picker!r} is not host:port")
        return host, port

    @property
    def longest_answer_s(self) -> float:
        """Maximum seconds that Envoy waits for the picker's answer to a held request."""
        return self.longest_hold_s + DECISION_MARGIN_S

    def data_host(self, shape: Shape) -> str:
        """Return the IP address to listen on for requests."""
        return self.listen_host or (_LOOPBACK if shape == "sidecar" else ANY_IPV4)
