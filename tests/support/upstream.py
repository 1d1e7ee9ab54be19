"""An HTTP server in the test's own process that records requests and gives scripted answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from aiohttp import WSMsgType, web
from multidict import CIMultiDictProxy

from support.served import ServedEngine

_MAX_RECORDED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request as it arrived."""

    method: str
    path: str  # including the query
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer: ``chunks``, each written when the iterator yields it, or else ``body``.

    The headers come after `wait_s`.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b'{"choices": [{"text": "ok", "message": {"content": "ok"}}]}'
    chunks: AsyncIterator[bytes] | None = None
    wait_s: float = 0.0

    @classmethod
    def sse(cls, chunks: AsyncIterator[bytes]) -> Self:
        """Return a stream of server-sent events; the chunks include their ``data:`` framing."""
        return cls(headers={"content-type": "text/event-stream"}, chunks=chunks)


class RecordingUpstream(ServedEngine):
    """A fake endpoint on loopback; WebSocket upgrades are echoed.

    Answers come from `script`, first in first out; when none is left, `default_answer`. Every
    answer names the upstream in ``x-upstream``.
    """

    shutdown_s = 1.0

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host, self.port = host, port
        self.requests: deque[RecordedRequest] = deque(maxlen=_MAX_RECORDED)
        self.default_answer = Answer()
        self.chat_answer: Answer | Callable[[], Answer] | None = None  # takes precedence for chat
        self.socket_status = 101  # of answers to those who open a WebSocket
        self.models: list[dict[str, object]] = []  # for the picker's polls of model names
        self.lists_models = asyncio.Event()  # while cleared, such polls wait
        self.lists_models.set()
        self._script: deque[Answer] = deque()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def asked(self) -> list[RecordedRequest]:
        """Return the requests, except scrapes, probes, and polls of names and templates."""
        return [r for r in self.requests if not _agent(r.headers)]

    def script(self, *answers: Answer) -> None:
        """Queue answers for later requests."""
        self._script.extend(answers)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        upgrade = request.headers.get("upgrade", "").lower() == "websocket"
        self.requests.append(
            RecordedRequest(
                method=request.method,
                path=request.path_qs,
                headers=request.headers,
                body=b"" if upgrade else await request.read(),
            )
        )
        if upgrade and self.socket_status != 101:
            return web.Response(status=self.socket_status)
        if upgrade:
            return await _echo_websocket(request)
        # Scrapes and probes come at any time, so scripted answers are only for other requests.
        watched = _agent(request.headers) not in ("", "trial")
        scripted = self._script and not watched
        answer = self._script.popleft() if scripted else self.default_answer
        if self.chat_answer is not None and not watched and request.path == "/v1/chat/completions":
            answer = self.chat_answer() if callable(self.chat_answer) else self.chat_answer
        if watched and request.path not in ("/metrics", "/health"):
            if request.path == "/v1/models":
                await self.lists_models.wait()
            if self.models and request.path == "/v1/models":
                return web.json_response({"object": "list", "data": self.models})
            return web.Response(status=404)
        # laar would count JSON as a wrong answer to a streaming request; octets may be a stream.
        streams = b'"stream":true' in self.requests[-1].body
        kind = "application/octet-stream" if streams else "application/json"
        headers = {"content-type": kind, **answer.headers, "x-upstream": self.address}
        await asyncio.sleep(answer.wait_s)
        if answer.chunks is None:
            return web.Response(status=answer.status, headers=headers, body=answer.body)
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for chunk in answer.chunks:
            await response.write(chunk)
        await response.write_eof()
        return response


def _agent(headers: Mapping[str, str]) -> str:
    """Return which of the picker's own collectors asks; empty for others."""
    return headers.get("user-agent", "").partition("laar-")[2]


async def _echo_websocket(request: web.Request) -> web.WebSocketResponse:
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for message in websocket:
        if message.type is WSMsgType.TEXT:
            await websocket.send_str(message.data)
    return websocket
