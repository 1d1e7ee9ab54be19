"""Settings for listeners, files for Envoy, and graceful shutdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MaxLen
from pydantic import AfterValidator, model_validator

from laar.datalayer.endpoints_file import join_address, split_address
from laar.declaring import Applies
from laar.settings.section import Section

_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened on


def _listen_address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_listen_address)]


def dialled(address: str) -> str:
    """Return the address to dial from this machine to reach a listener.

    A wildcard (0.0.0.0, ::) becomes loopback, since it is not a valid destination.
    """
    host, port = split_address(address)
    return join_address(_LOOPBACKS.get(host, host), port)


class Tls(Section):
    """TLS on the ext_proc port; needs the `tls` extra."""

    cert_file: Path | None = None
    """PEM file with the certificate chain, reloaded when it changes."""
    key_file: Path | None = None
    """PEM file with the certificate's private key."""
    self_signed: bool = False
    """Whether laar creates a self-signed certificate at startup instead, for gateways that follow
    the endpoint-picker contract: they encrypt but do not verify."""
    client_ca_file: Path | None = None
    """PEM file with CAs. Clients without a certificate from one of them are rejected."""

    @model_validator(mode="after")
    def _one_certificate(self) -> Tls:
        if (self.cert_file is None) is not (self.key_file is None):
            raise ValueError("`cert_file` and `key_file` belong together")
        if (self.cert_file is None) is not self.self_signed:
            raise ValueError("give `cert_file` and `key_file`, or `self_signed: true`")
        return self


class Listen(Section):
    """Addresses that laar listens on, each as host:port."""

    applies: ClassVar = Applies.AFTER_RESTART

    ext_proc: Address = "127.0.0.1:9002"
    """Address of the gRPC external processor. Loopback by default, for an Envoy on the same host.
    Use 0.0.0.0:9002 for an Envoy on a different host."""
    health: Address = "127.0.0.1:9003"
    """Address of the gRPC health checks (liveness, readiness). Loopback by default. Use
    0.0.0.0:9003 for a kubelet's probes."""
    admin: Address = "127.0.0.1:9090"
    """Address of the admin port (HTTP): metrics, health, live page. Loopback by default, since the
    page shows the fleet. Use 0.0.0.0:9090 for a scraper on a different host: metrics and health are
    then open, and everything else needs a token (decisions.viewers_token_file,
    accuracy.outcomes_token_file)."""
    admin_hosts: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Host names, without port, under which browsers and tools may reach the admin port, such as a
    Service's. `localhost` and IP addresses are always allowed. Under any other name the port serves
    only metrics and health, since a hostile page could point a name here."""
    tls: Tls | None = None
    """TLS on the ext_proc port. None by default, since it only costs time on loopback. Health and
    admin ports never use TLS."""


class EnvoySection(Section):
    """Files that laar writes for Envoy."""

    applies: ClassVar = Applies.AFTER_RESTART

    eds_file: Path | None = None
    """Endpoints file for Envoy's EDS, rewritten whenever the endpoints change. Its directory must
    be the one that Envoy's bootstrap watches."""


class Shutdown(Section):
    """Timeouts of a graceful shutdown."""

    applies: ClassVar = Applies.AT_ONCE

    drain_s: Annotated[float, Ge(0), Le(600)] = 5.0
    """Seconds after SIGTERM during which laar keeps serving but reports not ready, so that no Envoy
    sends new streams to a stopping picker. laar's own Envoys check its health and notice soon:
    with them, this phase ends after 0.4 s, once no stream has arrived for 0.1 s."""
    grace_s: Annotated[float, Ge(0), Le(3600)] = 30.0
    """Seconds that open streams have to finish after `drain_s` before they are cut off. With laar's
    own Envoys, answers continue without the picker, so it does not wait for them. In full duplex,
    answers pass through the picker and would be cut off, so allow for the longest answer."""
