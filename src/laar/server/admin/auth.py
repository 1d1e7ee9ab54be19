"""Token authentication for the admin port's views of the fleet and its decisions.

Health and metrics stay open, since kubelets and scrapers have no token; reports of outcomes have a
separate token. A browser sends the token through the page's form and gets a cookie that scripts
can't read and other sites can't send; other clients send it as a bearer token.

Without a token, only a port on loopback can be viewed. An address that keeps sending wrong tokens
has to wait, but the right token is always accepted, since others may share the address.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from laar.errors import RequestError
from laar.latest import Latest
from laar.server.browsers import LOGIN, OPEN, body_of

_OPEN = OPEN | {"/outcomes", "/page.css"}
_COOKIE = "laar_viewer"
_MAX_FORM_BYTES = 8192

_FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>laar</title>
<link rel="stylesheet" href="page.css"><main class="login"><h1>laar</h1>
<form method="post" action="login"><label for="token">Token (decisions.viewers_token_file)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Show</button>{note}</form></main></html>"""


class Attempts:
    """Counts wrong tokens by client address.

    A repeated wrong token counts once: that is not guessing, and clients behind a proxy or a mesh
    may share their address with a client that still has yesterday's token.

    Args:
        clock: monotonic seconds.
    """

    MOST = 10
    """Maximum number of different wrong tokens in a row from an address; a person makes fewer."""
    WAIT_S = 60.0
    MAX_ADDRESSES = 10_000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: Latest[str, tuple[set[int], float]] = Latest(self.MAX_ADDRESSES)

    def may_try(self, address: str) -> bool:
        """Return whether the address has sent few wrong tokens."""
        wrong, last_s = self._wrong.get(address, (set(), 0.0))
        return len(wrong) < self.MOST or self._clock() - last_s >= self.WAIT_S

    def right(self, address: str) -> None:
        """Record a valid token."""
        self._wrong.pop(address, None)

    def wrong(self, address: str, given: str) -> None:
        """Record a wrong token."""
        known, last_s = self._wrong.get(address, (set(), 0.0))
        now = self._clock()
        if now - last_s >= self.WAIT_S:
            known = set()
        if (sign := hash(given)) not in known and len(known) < self.MOST:
            known.add(sign)
            last_s = now
        self._wrong[address] = known, last_s


def address_of(scope: Scope) -> str:
    """Return the client address of a request."""
    client = scope.get("client")
    return str(client[0]) if client else ""


@dataclass(eq=False, repr=False)
class AdminAuth:
    """Middleware that passes on authorized requests, and asks others for the token.

    Args:
        app: handles the requests that are passed on.
        token: the viewers' token, which may be changed; None if none is required.
        attempts: counts wrong tokens.
        others: whether other machines can reach the port.
    """

    app: ASGIApp
    token: str | None
    attempts: Attempts
    others: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_open = scope["type"] != "http" or scope["path"] in _OPEN
        answer = None if is_open else await self._answer(scope, receive)
        await (answer or self.app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to a login or an unauthorized request; None to pass the request on."""
        if self.token is None:
            if not self.others:
                return None
            return JSONResponse(
                {"error": "this port is open to the network: set decisions.viewers_token_file"}, 403
            )
        may_try = self.attempts.may_try(address_of(scope))
        if scope["path"] == LOGIN and scope["method"] == "POST":
            answer = await self._login(Request(scope, receive))
            return answer if may_try or answer.status_code < 400 else self._wait()
        if self._may_look(scope):
            return None
        if not may_try:
            return self._wait()
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
        if not self._is_token(given, request.scope):
            note = '<p role="alert">That token is wrong.</p>'
            return HTMLResponse(_FORM.format(note=note), 401)
        answer = RedirectResponse("./", 303)
        encrypted = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        answer.set_cookie(_COOKIE, given, httponly=True, samesite="strict", secure=encrypted)
        return answer

    def _wait(self) -> Response:
        wait = {"retry-after": f"{self.attempts.WAIT_S:.0f}"}
        return JSONResponse({"error": "too many wrong tokens"}, 429, wait)

    def _may_look(self, scope: Scope) -> bool:
        request = Request(scope)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(bearer.strip(), scope)
        # A browser also sends the cookies of other ports, in any form.
        given = request.cookies.get(_COOKIE)
        return given is not None and self._is_token(given, scope)

    def _is_token(self, given: str, scope: Scope) -> bool:
        address = address_of(scope)
        right = hmac.compare_digest(given.encode(), (self.token or "").encode())
        if right:
            self.attempts.right(address)
        else:
            self.attempts.wrong(address, given)
        return right
