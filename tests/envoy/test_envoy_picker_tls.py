"""Envoy accepts a picker only with a certificate of the named CA for the picker's address."""

from __future__ import annotations

import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import grpc
import pytest
from bench.noop_picker import NoopPicker, start

from laar.envoy.options import BootstrapOptions

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl"),
]


def self_signed(directory: Path, name: str) -> tuple[Path, grpc.ServerCredentials]:
    """Make a self-signed certificate for ``name``; return its path, and a server's credentials."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    subprocess.run(
        [
            *command.split(),
            *("-subj", "/CN=picker", "-addext", f"subjectAltName={name}"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    pair = (key.read_bytes(), certificate.read_bytes())
    return certificate, grpc.ssl_server_credentials([pair])


def dial_loopback(bootstrap):
    """Change the picker's address, as if its name had been resolved, but not its certificate's."""
    (picker,) = (c for c in bootstrap["static_resources"]["clusters"] if c["name"] == "laar-picker")
    [[endpoint]] = [each["lb_endpoints"] for each in picker["load_assignment"]["endpoints"]]
    endpoint["endpoint"]["address"]["socket_address"]["address"] = "127.0.0.1"
    picker["type"] = "STATIC"


@pytest.mark.parametrize(
    ("host", "name", "trusted"),
    [
        ("127.0.0.1", "IP:127.0.0.1", True),
        ("127.0.0.1", "IP:127.0.0.2", False),
        ("127.0.0.1", "DNS:picker", False),
        ("picker.example.", "DNS:picker.example", True),
    ],
)
async def test_a_picker_is_called_only_if_its_certificate_matches_its_address(
    fleet, http, tmp_path, host, name, trusted
):
    (a,) = await fleet.upstreams(1)
    fleet.members([a.address])
    ca_path, credentials = self_signed(tmp_path, name)
    picker = NoopPicker(a.address, observe=fleet.seen.append)
    server = await start(picker, fleet.picker_port, credentials)
    try:
        options = BootstrapOptions(picker_ca_path=str(ca_path))
        envoy = await fleet.envoy("standalone", options, picker_host=host, edit=dial_loopback)
        async with http.post(f"{envoy.url()}/v1/completions", data=BytesIO(b"{}")) as response:
            assert response.status == 200
    finally:
        await server.stop(None)
    assert bool(fleet.seen) is trusted
