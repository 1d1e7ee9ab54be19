"""What the admin port refuses: pages from other origins, and viewers without the token.

A browser on a machine that can reach the port sends any request that a page makes. So a request
must name a host of this port (against DNS rebinding, where a foreign name resolves to this port's
address), and must not come from another origin's page. Except at a login, a request's body must be
JSON, which no page can send to another origin without a preflight.

A browser sends the viewers' token through the page's form and gets a cookie that scripts can't read
and other sites can't send; other clients send it as a bearer token. Without a token, only a port on
loopback can be viewed. Reports of outcomes have a token of their own.

Metrics and health are exempt: scrapers use any host name and have no token, and nothing can be
changed there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from laar.datalayer.endpoints_file import is_ip
from laar.errors import RequestError
from laar.server.admin.answers import refused
from laar.server.token_file import is_sent

_OPEN = frozenset({"/metrics", "/healthz", "/readyz"})
"""Paths open to anyone who can reach the port."""

_LOGIN = "/login"
"""Path of the only form that a browser submits; its cookie is not sent from other sites' pages."""

BODY_S = 30.0
"""Timeout for sending a body; unfinished bodies could otherwise hold all connections."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::[0-9]{1,5})?")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"", "same-origin", "none"})
_OF_ANYONE = frozenset({"/outcomes", "/page.css"})
_COOKIE = "laar_viewer"
_MAX_FORM_BYTES = 8192

_FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>laar</title>
<link rel="stylesheet" href="page.css"><main class="login"><h1>laar</h1>
<form method="post" action="login"><label for="token">Token (decisions.viewers_token_file)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Show</button>{note}</form></main></html>"""


class AdminGuard:
    """Middleware that passes on requests of viewers, and answers all others.

    Args:
        app: handles the requests that are passed on.
        token: the viewers' token; None if none is required.
        hosts: names of the port, besides `localhost` and IP addresses.
        others: whether other machines can reach the port.

    Attributes:
        token: may be changed.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, hosts: Iterable[str] = (), *, others: bool = False
    ) -> None:
        self.app = app
        self.token = token
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        answer = None
        if scope["type"] == "http" and (path := scope["path"]) not in _OPEN:
            fault = self._fault(scope["method"], path, Headers(scope=scope))
            if fault is not None:
                answer = refused(fault)
            elif path not in _OF_ANYONE:
                answer = await self._answer(scope, receive)
        await (answer or self.app)(scope, receive, send)

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
        if method in _READS or path == _LOGIN:
            return None
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return None  # all browsers send the origin with these requests
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return RequestError(
                415, "not-json", "send it with the header `content-type: application/json`"
            )
        return None

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to a login or an unauthorized request; None to pass the request on."""
        if self.token is None:
            if not self._others:
                return None
            return JSONResponse(
                {"error": "this port is open to the network: set decisions.viewers_token_file"}, 403
            )
        request = Request(scope, receive)
        if scope["path"] == _LOGIN and scope["method"] == "POST":
            return await self._login(request)
        # A browser also sends the cookies of other ports, in any form.
        cookie = f"bearer {request.cookies.get(_COOKIE, '')}"
        if any(
            is_sent(self.token, sent) for sent in (cookie, request.headers.get("authorization", ""))
        ):
            return None
        if scope["path"] == "/":
            return HTMLResponse(_FORM.format(note=""), 401)
        return JSONResponse(
            {"error": "send the viewers' token (--token-file) as `Authorization: Bearer ...`"},
            401,
            {"www-authenticate": "Bearer"},
        )

    async def _login(self, request: Request) -> Response:
        try:
            body = await body_of(request, _MAX_FORM_BYTES)
        except RequestError as fault:
            return HTMLResponse(_FORM.format(note=""), fault.status)
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if not is_sent(self.token or "", f"bearer {given}"):
            note = '<p role="alert">That token is wrong.</p>'
            return HTMLResponse(_FORM.format(note=note), 401)
        answer = RedirectResponse("./", 303)
        encrypted = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        answer.set_cookie(_COOKIE, given, httponly=True, samesite="strict", secure=encrypted)
        return answer


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
