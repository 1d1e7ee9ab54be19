"""Requests to Envoy, as clients send them."""

from __future__ import annotations

import asyncio
import contextlib
from io import BytesIO
from typing import NamedTuple

import orjson
from aiohttp import ClientSession
from multidict import CIMultiDictProxy

from laar.envoy.process import EnvoyProcess

CHAT = "/v1/chat/completions"


class Got(NamedTuple):
    """An answer, read to its end."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


def chat(text: str = "hello", *, model: str = "m", **fields: object) -> bytes:
    """Return the body of a chat request with one message."""
    return orjson.dumps({"messages": [{"role": "user", "content": text}], "model": model, **fields})


async def post(
    http: ClientSession, envoy: EnvoyProcess, body: bytes, path: str = CHAT, **headers: str
) -> Got:
    """Send a body as JSON and read the answer."""
    headers = {"content-type": "application/json", **headers}
    async with http.post(envoy.url() + path, data=BytesIO(body), headers=headers) as answer:
        return Got(answer.status, answer.headers, await answer.read())


@contextlib.asynccontextmanager
async def connected(envoy):
    """Open a TCP connection to Envoy; close it at the end."""
    port = int(envoy.url().rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()
