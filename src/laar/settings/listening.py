"""Where laar listens, what it writes for Envoy, and how it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import AfterValidator, model_validator

from laar.datalayer.endpoints_file import split_address
from laar.settings.section import Applies, Section

__all__ = ["EnvoySection", "Listen", "Shutdown", "Tls"]


def _listen_address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_listen_address)]


class Tls(Section):
    """TLS on the ext_proc port; needs the extra `tls`."""

    certificate: Path | None = None
    """PEM file, the chain; read again when it changes."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    self_signed: bool = False
    """Make a certificate at start instead: for gateways of the endpoint-picker contract, which
    encrypt and don't verify."""
    client_ca: Path | None = None
    """PEM file of authorities; callers without a certificate of theirs are refused."""

    @model_validator(mode="after")
    def _one_certificate(self) -> Tls:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        if (self.certificate is None) is not self.self_signed:
            raise ValueError("give `certificate` and `key`, or `self_signed: true`")
        return self


class Listen(Section):
    """Where laar listens, each as host:port."""

    applies: ClassVar = Applies.AFTER_RESTART

    ext_proc: Address = "127.0.0.1:9002"
    """gRPC external processor. Loopback by default: beside Envoy no other host needs it.
    0.0.0.0:9002 for an Envoy on another host."""
    health: Address = "0.0.0.0:9003"
    """gRPC health checks (liveness, readiness); open to the kubelet."""
    admin: Address = "127.0.0.1:9090"
    """HTTP: metrics, health, live page. Loopback by default, since the page shows the fleet;
    0.0.0.0:9090 for a scraper on another host. Then metrics and health are open, and all else needs
    a token: decisions.viewers_token_file, accuracy.outcomes_token_file."""
    admin_hosts: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Names by which browsers and tools reach the admin port, without port, such as a Service's;
    `localhost` and IP addresses always may. Under another name, which a hostile page can point
    here, the port shows nothing but metrics and health."""
    transport: Literal["h2", "grpc"] = "h2"
    """What serves the ext_proc port: laar's own server over HTTP/2, which spends less on each
    message, or gRPC's, which needs the extra `grpc`. docs/performance.md has both measured. Beside
    `--workers`, each of Envoy's threads keeps to one worker with gRPC's, which can't ask for more
    connections without refusing streams. The health port is served by laar's own."""
    tls: Tls | None = None
    """TLS on the ext_proc port. None by default: on loopback it only costs. Health and admin are
    always plain."""


class EnvoySection(Section):
    """What laar writes for Envoy."""

    applies: ClassVar = Applies.AFTER_RESTART

    eds_file: Path | None = None
    """Endpoints file for Envoy's EDS, rewritten whenever the endpoints change. Its directory must
    be the one that Envoy's bootstrap watches."""


class Shutdown(Section):
    """How laar stops."""

    applies: ClassVar = Applies.AT_ONCE

    drain_s: Annotated[float, Ge(0), Le(600)] = 5.0
    """Seconds of serving on after SIGTERM while readiness is refused, so that no Envoy sends new
    streams to a picker that is leaving."""
    grace_s: Annotated[float, Ge(0), Le(3600)] = 30.0
    """Seconds that open streams then have to finish before they are cut. In the native shape
    answers go on without the picker; in the gateway shape they pass through it and end there, so
    allow for the longest answer."""
