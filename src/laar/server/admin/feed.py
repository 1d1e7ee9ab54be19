"""The page's feed: server-sent events, one frame a second, shared by all viewers.

Viewers have no queues: each waits for the next frame and gets the newest, so slow readers skip
some. The server disconnects a viewer that stops reading. Without viewers, no frames are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import orjson
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

INTERVAL_S = 1.0
"""Seconds between frames."""
MAX_VIEWERS = 50
"""Maximum number of concurrent viewers; each costs a socket and about 0.2 ms per second."""

_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class Feed:
    """An ASGI endpoint that makes frames while a viewer is connected, and sends them.

    `frame` returns the page's content.
    """

    def __init__(self, frame: Callable[[], Mapping[str, object]]) -> None:
        self._frame = frame
        self._looked = asyncio.Event()
        self._newest = b""
        self._changed = asyncio.Event()  # set by the next frame, and by the end of the streams
        self._ends = 0  # number of calls of `end_streams`
        self.viewers = 0

    async def run(self) -> None:
        """Make frames until cancelled."""
        while True:
            while self.viewers:
                shown = orjson.dumps(self._frame(), option=orjson.OPT_SERIALIZE_NUMPY)
                self._newest = b"data: " + shown + b"\n\n"
                self._wake()
                await asyncio.sleep(INTERVAL_S)
            self._newest = b""
            self._looked.clear()
            await self._looked.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer until it disconnects."""
        if scope["method"] == "HEAD":
            await Response(headers=_HEADERS)(scope, receive, send)
            return
        if self.viewers >= MAX_VIEWERS:
            refusal = JSONResponse(
                {"error": f"{MAX_VIEWERS} viewers are connected"}, 503, {"retry-after": "30"}
            )
            await refusal(scope, receive, send)
            return
        self.viewers += 1
        self._looked.set()
        try:
            answer = StreamingResponse(self._frames(self._ends), headers=_HEADERS)
            await answer(scope, receive, send)
        finally:
            self.viewers -= 1

    def end_streams(self) -> None:
        """End the open streams: viewers reconnect, to a successor or with a new token."""
        self._ends += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _frames(self, ends: int) -> AsyncIterator[bytes]:
        while ends == self._ends:
            changed = self._changed
            if self._newest:
                yield self._newest
            await changed.wait()
