"""Protection of the admin port against web pages from other origins.

A browser on a machine that can reach the port sends any request that a page makes. So a request
must name a host of this port (against DNS rebinding, where a foreign name resolves to this port's
address), and must not come from another origin's page. Except at a login, a request's body must be
JSON, which no page can send to another origin without a preflight.

Metrics and health are exempt: scrapers use any host name, and nothing can be changed there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from laar.datalayer.endpoints_file import is_ip
from laar.errors import RequestError
from laar.server.admin.answers import refused

OPEN = frozenset({"/metrics", "/healthz", "/readyz"})
"""Paths open to anyone who can reach the port."""

LOGIN = "/login"
"""Path of the only form that a browser submits; its cookie is not sent from other sites' pages."""

BODY_S = 30.0
"""Timeout for sending a body; unfinished bodies could otherwise hold all connections."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::[0-9]{1,5})?")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"", "same-origin", "none"})


class BrowserGuard:
    """Middleware that rejects requests that a page from another origin may have sent.

    Requests must name a host in `hosts`, `localhost` or an IP address.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self.app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self.app
        if scope["type"] == "http" and scope["path"] not in OPEN:
            fault = self._fault(scope["method"], scope["path"], Headers(scope=scope))
            app = self.app if fault is None else refused(fault)
        await app(scope, receive, send)

    def _fault(self, method: str, path: str, headers: Headers) -> RequestError | None:
        host = headers.get("host", "")
        name = host_of(host).lower().removesuffix(".")
        if name not in self._hosts and not is_ip(name):  # DNS rebinding needs a name
            return RequestError(
                403,
                "unknown-host",
                "this host name is not allowed on the admin port: see listen.admin_hosts",
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "")
        is_foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
        follows_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if is_foreign or (site not in _OWN_SITES and not follows_link):
            return RequestError(403, "foreign-origin", "the request comes from another site's page")
        if method in _READS or path == LOGIN:
            return None
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return None  # all browsers send the origin with these requests
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return RequestError(
                415, "not-json", "send it with the header `content-type: application/json`"
            )
        return None


async def body_of(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: 413 above `max_bytes`; 408 after `BODY_S`; 400 if the client disconnects.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise RequestError(
                        413, "body-too-large", f"the body is longer than {max_bytes} bytes"
                    )
    except TimeoutError:
        raise RequestError(408, "timeout", f"the body did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise RequestError(400, "bad-request", "the body is incomplete") from None
    return bytes(body)


def host_of(address: str) -> str:
    """Return the host of ``host:port``, ``[v6]:port`` or a bare host; empty for anything else."""
    match = _ADDRESS.fullmatch(address)
    return match[1].strip("[]") if match else ""
