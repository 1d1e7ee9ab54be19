"""The API server's certificate must come from the mounted CA, which may be replaced."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from laar.datalayer.kubernetes.api import ApiAccess, ApiError, ApiServer
from support.kube_api_server import KubeApiServer, pod

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes certificates with openssl"
)
PODS = "/api/v1/namespaces/ml/pods"


def certificate(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Make a self-signed certificate for 127.0.0.1; return its path and a server's context."""
    key, cert = directory / f"{name}.key", directory / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    subprocess.run(
        [*command.split(), "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_only_a_server_certified_by_the_mounted_ca_is_trusted(tmp_path: Path) -> None:
    right, context = certificate(tmp_path, "right")
    wrong, _ = certificate(tmp_path, "wrong")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(wrong.read_bytes())
    (tmp_path / "token").write_text("secret\n")
    server = KubeApiServer()
    server.token = "secret"
    await server.put("pods", pod("a"))
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    listening = TestServer(app)
    await listening.start_server(ssl=context)
    access = ApiAccess(
        url=f"https://127.0.0.1:{listening.port}", ca_file=ca, token_file=tmp_path / "token"
    )
    async with ApiServer(access) as api:
        with pytest.raises(ApiError, match="certificate verify failed"):
            await api.list_page(PODS, {})
        ca.write_bytes(right.read_bytes())
        page: Any = await api.list_page(PODS, {})
        assert [item["metadata"]["name"] for item in page["items"]] == ["a"]
    await listening.close()
