"""Settings of listeners, files for Envoy, and a graceful stop."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MaxLen
from pydantic import AfterValidator, model_validator

from laar.datalayer.endpoints_file import join_address, split_address
from laar.declaring import Applies
from laar.settings.section import Section


def _listen_address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_listen_address)]


def dialled(address: str) -> str:
    """Return the address at which a process on this machine reaches a listener on another address.

    A listener on every address (0.0.0.0, ::) is reached by loopback: the wildcard is no
    destination.
    """
    host, port = split_address(address)
    try:
        if ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
    except ValueError:
        pass  # a name
    return join_address(host, port)


class Tls(Section):
    """TLS on the ext_proc port; needs the extra `tls`."""

    certificate: Path | None = None
    """PEM file of the certificate chain, read again when it changes."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    self_signed: bool = False
    """Whether laar makes a certificate at its start instead, for gateways of the endpoint-picker
    contract, which encrypt but do not verify."""
    client_ca: Path | None = None
    """PEM file of authorities. Callers without a certificate from one of them are refused."""

    @model_validator(mode="after")
    def _one_certificate(self) -> Tls:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        if (self.certificate is None) is not self.self_signed:
            raise ValueError("give `certificate` and `key`, or `self_signed: true`")
        return self


class Listen(Section):
    """Addresses that laar listens on, each as host:port."""

    applies: ClassVar = Applies.AFTER_RESTART

    ext_proc: Address = "127.0.0.1:9002"
    """Address of the gRPC external processor. Loopback by default, for an Envoy on the same host.
    0.0.0.0:9002 for an Envoy on another host."""
    health: Address = "127.0.0.1:9003"
    """Address of the gRPC health checks (liveness, readiness). Loopback by default. 0.0.0.0:9003
    for a kubelet's probes."""
    admin: Address = "127.0.0.1:9090"
    """Address of the admin port (HTTP): metrics, health, live page. Loopback by default, since the
    page shows the fleet. 0.0.0.0:9090 for a scraper on another host: then metrics and health are
    open, and everything else needs a token (decisions.viewers_token_file,
    accuracy.outcomes_token_file)."""
    admin_hosts: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Host names, without port, by which browsers and tools may reach the admin port, such as a
    Service's. `localhost` and IP addresses are always allowed. Under any other name, which a
    hostile page can point here, the port serves only metrics and health."""
    tls: Tls | None = None
    """TLS on the ext_proc port. None by default, since on loopback it only costs time. Health and
    admin ports are always plain."""


class EnvoySection(Section):
    """Files that laar writes for Envoy."""

    applies: ClassVar = Applies.AFTER_RESTART

    eds_file: Path | None = None
    """Endpoints file for Envoy's EDS, rewritten whenever the endpoints change. Its directory must
    be the one that Envoy's bootstrap watches."""


class Shutdown(Section):
    """Times of a graceful stop."""

    applies: ClassVar = Applies.AT_ONCE

    drain_s: Annotated[float, Ge(0), Le(600)] = 5.0
    """Seconds after SIGTERM for which laar keeps serving but reports that it is not ready, so that
    no Envoy sends new streams to a stopping picker. laar's own Envoys check its health and know at
    once: with them it ends as soon as no stream has come for 0.3 s."""
    grace_s: Annotated[float, Ge(0), Le(3600)] = 30.0
    """Seconds that open streams then have to finish before they are cut. With laar's own Envoys
    answers go on without the picker, so it waits for none. In full duplex answers pass through it
    and would be cut, so allow for the longest answer."""
