"""The page's feed: server-sent events, one frame a second, shared by all viewers.

Viewers have no queues: each waits for the next frame and gets the newest, so slow readers skip
some. A viewer that stops reading is disconnected after `STALLED_S`. Without viewers, no frames are
made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import orjson
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from laar.datalayer.visits import cancel

INTERVAL_S = 1.0
"""Seconds between frames."""
MAX_VIEWERS = 50
"""Maximum concurrent viewers; each costs a socket and about 0.2 ms per second."""
STALLED_S = 30.0
"""Seconds after which a viewer that does not read is disconnected."""

_REPLACED = b"event: replaced\ndata: token\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Feed:
    """An ASGI endpoint that makes frames while a viewer is connected, and sends them.

    `frame` returns the page's content.
    """

    def __init__(self, frame: Callable[[], Mapping[str, object]]) -> None:
        self._frame = frame
        self._looked = asyncio.Event()
        self._newest = b""
        self._made = asyncio.Event()  # set when the next frame is made
        self._closing = asyncio.Event()
        self.viewers = 0

    async def run(self) -> None:
        """Make frames until cancelled."""
        while True:
            while self.viewers:
                shown = orjson.dumps(self._frame(), option=orjson.OPT_SERIALIZE_NUMPY)
                self._newest = b"data: " + shown + b"\n\n"
                self._made.set()
                self._made = asyncio.Event()
                await asyncio.sleep(INTERVAL_S)
            self._newest = b""
            self._looked.clear()
            await self._looked.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer until it leaves or stops reading."""
        if scope.get("method") == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b""})
            return
        if self.viewers >= MAX_VIEWERS:
            answer = JSONResponse(
                {"error": f"{MAX_VIEWERS} viewers are connected"}, 503, {"retry-after": "30"}
            )
            await answer(scope, receive, send)
            return
        self.viewers += 1
        self._looked.set()
        end = self._closing
        gone = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send_frames(send))
        closing = asyncio.create_task(end.wait())
        tasks = (gone, sending, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.viewers -= 1
            await cancel(tasks)
        if end.is_set():
            last = b"" if end is self._closing else _REPLACED
            await send({"type": "http.response.body", "body": last})

    def close(self) -> None:
        """End every viewer's stream; viewers reconnect to the picker's successor."""
        self._closing.set()

    def ask_again(self) -> None:
        """End the open streams, which were authorized by a token that has been replaced."""
        self._closing.set()
        self._closing = asyncio.Event()

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while True:
            frame, made = self._newest, self._made
            if frame:
                async with asyncio.timeout(STALLED_S):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await made.wait()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
