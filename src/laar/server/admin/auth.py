"""Who may look: a token for everything on the admin port that shows the fleet or its decisions.

Health and metrics stay open, since kubelets and scrapers come without one; reported outcomes have a
token of their own. A browser gets the token by the page's form, into a cookie that no script reads
and no other site's page sends; everybody else sends it as a bearer.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from laar.errors import SettingError

__all__ = ["Viewers", "read_viewers_token"]

_OPEN = frozenset({"/metrics", "/healthz", "/readyz", "/outcomes", "/page.css"})
_COOKIE = "laar_viewer"
_LOGIN = "/login"
_MAX_FORM_BYTES = 8192
_MIN_TOKEN_CHARS = 8

_FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>laar</title>
<link rel="stylesheet" href="page.css"><main class="login"><h1>laar</h1>
<form method="post" action="login"><label for="token">Token (decisions.viewers_token_file)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Show</button>{note}</form></main></html>"""


def read_viewers_token(path: Path | None) -> str | None:
    """Reads the token; None where no file is set.

    Raises:
        SettingError: the file can't be read, or holds no token.
    """
    if path is None:
        return None
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingError(f"decisions.viewers_token_file: {path} can't be read: {fault}") from None
    if len(token) < _MIN_TOKEN_CHARS or not token.isprintable():
        raise SettingError(
            f"decisions.viewers_token_file: {path} needs {_MIN_TOKEN_CHARS} or more printable "
            "characters; write a token there, such as `openssl rand -hex 24` makes"
        )
    return token


class Viewers:
    """Lets requests to the admin application through, or asks for the token.

    Args:
        app: the application behind.
        token: what viewers must have; None lets everybody look.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if self._token is None or scope["type"] != "http" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        if scope["path"] == _LOGIN and scope["method"] == "POST":
            answer = await self._login(Request(scope, receive))
        elif self._may_look(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        elif scope["path"] == "/":
            answer = HTMLResponse(_FORM.format(note=""), 401)
        else:
            answer = JSONResponse(
                {"error": "send the viewers' token as `Authorization: Bearer ...`"},
                401,
                {"www-authenticate": "Bearer"},
            )
        await answer(scope, receive, send)

    async def _login(self, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_FORM_BYTES:
                return HTMLResponse(_FORM.format(note=""), 413)
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if not self._is_token(given):
            note = '<p role="alert">That is not the token.</p>'
            return HTMLResponse(_FORM.format(note=note), 401)
        answer = RedirectResponse("./", 303)
        answer.set_cookie(_COOKIE, given, httponly=True, samesite="strict")
        return answer

    def _may_look(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(bearer.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())
