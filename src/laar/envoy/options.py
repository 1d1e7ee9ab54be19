"""Options of a bootstrap, and constants shared by its parts."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from laar.datalayer.endpoints_file import is_ip, split_address
from laar.errors import SettingError
from laar.protocol.headers import FAIRNESS

if TYPE_CHECKING:
    from laar.settings import Settings

Shape: TypeAlias = Literal["sidecar", "standalone", "gateway"]

MESSAGE_TIMEOUT_S = 1.8
"""Seconds after which Envoy gives up on the picker, which decides in milliseconds; held requests
get more time. A picker that hangs costs less than 2 s, all included, unless it was behind."""

HEAP_SHARE = 0.75
"""Share of the container's memory for Envoy's heap; the rest is for its code, free memory that the
allocator keeps, and the kernel's socket buffers."""
BUFFER_BYTES = 64 << 10
"""What Envoy holds of an answer for each of the two connections that it passes through."""
SOCKET_BYTES = 32 << 10
"""What the kernel holds for each of them, half of what it counts: else it holds up to 6 MB."""
CONNECTION_BYTES = (256 << 10) + 4 * SOCKET_BYTES
"""The most that a client's HTTP/1 connection can make Envoy hold: an answer's buffers on both sides
and in a filter, as Envoy counts no stream's memory there and so resets none, and the kernel's."""
_LEAST_CONNECTIONS, _MOST_CONNECTIONS = 100, 20_000
_LEAST_BODIES = 4
"""How many of the longest bodies have to fit in the memory at the same time."""
UNREAD_S = 120.0
"""Seconds after which a client that takes no byte of its answer is cut off, once the buffers are
full. Linux counts them since 5.11."""
SLOWEST_UPLOAD_BYTES_PER_S = 64 << 10
"""Uploads that take longer than the largest body takes at this speed get 408."""

ANY_IPV4 = "0.0.0.0"  # noqa: S104 - gateways must be reachable
LOOPBACK = "127.0.0.1"
_RANGES = {
    **dict.fromkeys(("listen_port", "ready_port", "admin_port"), (0, 65535)),
    "max_body_bytes": (1, 2**32 - 1),
    "memory_bytes": (256 << 20, 2**50),
    "longest_hold_s": (0, 3590),  # plus `DECISION_MARGIN_S`: Envoy's longest wait for a picker
    "retries": (0, 10),
    **dict.fromkeys(("request_timeout_s", "idle_timeout_s"), (0.001, 1e9)),  # Envoy's unit is 1 ms
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """The options of a bootstrap; the text below each is also the help of its `laar envoy` option.

    Raise `SettingError` if a value is out of range; the message names the option of `laar envoy`.
    """

    picker: str = "127.0.0.1:9002"
    """host:port of the picker, or of several with commas between; IPv6 in brackets. A DNS name is
    resolved again regularly, and requests are spread over all addresses."""
    picker_ca_path: str | None = None
    """PEM file with the CA of the picker's certificate. Default: plain HTTP/2, no TLS, for a picker
    on the same machine or in the same pod. Envoy reads it at startup."""
    picker_certificate_path: str | None = None
    """PEM file with Envoy's client certificate, for the picker's listen.tls.client_ca_file. Envoy
    reads it at startup."""
    picker_key_path: str | None = None
    """PEM file with the key of --picker-certificate."""
    listen_port: int = 8080
    """Port on which Envoy accepts requests; 0 lets the kernel choose."""
    share_port: bool = False
    """Let another Envoy listen on the same port, to take over without losing a request."""
    ready_port: int = 19001
    """Port for /ready and /stats/prometheus."""
    admin_port: int = 19000
    """Envoy's admin port, on loopback. With 0, /stats/prometheus is unreachable."""
    eds_path: str = "/run/laar/envoy/endpoints.json"
    """Endpoints file that `laar serve` writes (envoy.eds_file); its directory is watched."""
    endpoint_cas: tuple[str, ...] = ()
    """PEM file with CAs of https endpoints, or `system`; repeatable. Envoy reads it at startup."""
    fail_open: bool = True
    """Let Envoy choose among the model's endpoints if no picker answers, instead of answering 503.
    If it can't know the model, it answers 503 as well, unless all endpoints accept the same names.
    """
    max_body_bytes: int = 32 * 1024 * 1024
    """Maximum size of a request body, in bytes; use the picker's bodies.max_body_bytes. Larger
    bodies get 413."""
    memory_bytes: int = 2 << 30
    """Memory that Envoy may use, in bytes: its container's limit. Shortly before it is used up,
    Envoy resets the requests and answers that hold most of it."""
    retries: int = 2
    """Number of retries, 0 to 10, of a request that failed before its answer began."""
    longest_hold_s: float = 300.0
    """Longest time that the picker may hold a request, in seconds, 0 to 3590; at least its
    flow.max_hold_s. It holds only turns of sessions for longer than that, and at most for half as
    long as their clients say that they wait: 600 s in OpenAI's and Anthropic's libraries."""
    request_timeout_s: float = 3600.0
    """Timeout of a request including its whole answer, in seconds."""
    idle_timeout_s: float = 1800.0
    """Seconds without any data after which Envoy ends a request, unless the picker sets a limit. An
    unstreamed answer is silent until its last token; the default allows 36,000 at 20 per second."""
    tenant_header: str = FAIRNESS
    """Header with the tenant's name; use the picker's flow.tenant_header."""
    trust_gateway_headers: bool | None = None
    """Accept tenant, objective and model headers in requests, for instance from an upstream
    gateway. By default, only a sidecar accepts them."""
    listen_host: str | None = None
    """IP address to listen on for requests and probes. Default: depends on the shape."""

    def __post_init__(self) -> None:
        _ = self.picker_addresses
        pair = {self.picker_certificate_path is None, self.picker_key_path is None}
        if len(pair) > 1 or (self.picker_ca_path is None and pair == {False}):
            raise SettingError(
                "--picker-certificate, --picker-key: give both, and --picker-ca as well"
            )
        for name, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, name)) <= most:
                option = name.removesuffix("_s").replace("_", "-")
                raise SettingError(f"--{option}: {value} is not in {least}..{most}")
        if self.most_connections < _LEAST_CONNECTIONS:
            held = _LEAST_BODIES * self.max_body_bytes + _LEAST_CONNECTIONS * CONNECTION_BYTES
            raise SettingError(
                f"--memory-bytes: {self.memory_bytes} is too little for {_LEAST_BODIES} bodies of "
                f"{self.max_body_bytes} bytes (--max-body-bytes) and {_LEAST_CONNECTIONS} "
                f"connections: at least {ceil(held / HEAP_SHARE)}"
            )
        if not Path(self.eds_path).is_absolute():
            raise SettingError(f"--eds-file: {self.eds_path!r} must be an absolute path")
        if self.listen_host is not None and not is_ip(self.listen_host):
            raise SettingError(f"--listen-address: {self.listen_host!r} is not an IP address")

    @property
    def most_connections(self) -> int:
        """How many connections of clients fit besides the longest bodies."""
        left = int(HEAP_SHARE * self.memory_bytes) - _LEAST_BODIES * self.max_body_bytes
        return min(_MOST_CONNECTIONS, left // CONNECTION_BYTES)

    @property
    def picker_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each picker."""
        try:
            return [split_address(each.strip()) for each in self.picker.split(",")]
        except ValueError as fault:
            raise SettingError(f"--picker: {fault}") from None


def envoy_options(settings: Settings) -> BootstrapOptions:
    """Return the options of an Envoy next to a picker with these settings."""
    from laar.settings.ignored import endpoint_cas
    from laar.settings.listening import dialled

    eds = settings.envoy.eds_file or Path(BootstrapOptions().eds_path)
    return BootstrapOptions(
        picker=dialled(settings.listen.ext_proc),
        listen_host=LOOPBACK,
        endpoint_cas=endpoint_cas(settings),
        max_body_bytes=settings.stream.max_body_bytes,
        longest_hold_s=max(BootstrapOptions().longest_hold_s, settings.flow.admission.max_hold_s),
        tenant_header=settings.stream.tenant_header,
        eds_path=str(eds.absolute()),
    )
