"""Token authentication for the admin port's views of the fleet and its decisions.

Health and metrics stay open, since kubelets and scrapers have no token; reports of outcomes have a
separate token. A browser sends the token through the page's form and gets a cookie that scripts
can't read and other sites can't send; other clients send it as a bearer token.

Without a token, only a port on loopback can be viewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from laar.errors import RequestError
from laar.server.browsers import LOGIN, OPEN, body_of
from laar.server.token_file import is_sent

_OPEN = OPEN | {"/outcomes", "/page.css"}
_COOKIE = "laar_viewer"
_MAX_FORM_BYTES = 8192

_FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>laar</title>
<link rel="stylesheet" href="page.css"><main class="login"><h1>laar</h1>
<form method="post" action="login"><label for="token">Token (decisions.viewers_token_file)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Show</button>{note}</form></main></html>"""


@dataclass(eq=False, repr=False)
class AdminAuth:
    """Middleware that passes on authorized requests, and asks others for the token.

    Args:
        app: handles the requests that are passed on.
        token: the viewers' token, which may be changed; None if none is required.
        others: whether other machines can reach the port.
    """

    app: ASGIApp
    token: str | None
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
        request = Request(scope, receive)
        if scope["path"] == LOGIN and scope["method"] == "POST":
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
