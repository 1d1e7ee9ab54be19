"""HTTP/1.1 load over plain connections, with a fixed concurrency or rate."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence

import orjson

__all__ = ["Load", "bodies"]

DISTINCT_BODIES = 16
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_READ_BYTES = 1 << 20

_Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Load:
    """Load of one kind of request on one Envoy.

    Args:
        url: URL of Envoy, `http://HOST:PORT`.
        bodies: bodies to send, in rotation.
        chunks: events of each answer; None for one JSON text.
        may_fail: whether to count failed requests instead of raising.

    Attributes:
        failed: number of requests not answered by a 200.
    """

    def __init__(
        self,
        url: str,
        bodies: Sequence[bytes],
        chunks: int | None = None,
        *,
        may_fail: bool = False,
    ) -> None:
        self.failed = 0
        self._may_fail = may_fail
        host, _, port = url.partition("://")[2].partition(":")
        self._place = host, int(port)
        asked = "" if chunks is None else f"?chunks={chunks}"
        self._requests = [
            b"POST /v1/chat/completions%b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json"
            b"\r\ncontent-length: %d\r\n\r\n%b" % (asked.encode(), len(body), body)
            for body in bodies
        ]
        self._free: list[_Wire] = []

    async def closed(self, count: int, at_once: int) -> list[float]:
        """Send `count` requests, `at_once` in parallel; return the seconds of each."""
        numbers = iter(range(count))
        took: list[float] = []

        async def client() -> None:
            for number in numbers:
                began = time.perf_counter()
                await self._ask(number)
                took.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(count, at_once)):
                group.create_task(client())
        return took

    async def at_rate(self, rate: float, seconds: float, seed: int) -> list[float]:
        """Send requests at random times; return the seconds of each since it was due."""
        rng = random.Random(seed)
        took: list[float] = []

        async def ask(number: int, due: float) -> None:
            await self._ask(number)
            took.append(time.perf_counter() - due)

        begin = due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            number = 0
            while (due := due + rng.expovariate(rate)) < begin + seconds:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(ask(number, due))
                number += 1
        return took

    def close(self) -> None:
        """Close all connections."""
        while self._free:
            self._free.pop()[1].close()

    async def _ask(self, number: int) -> None:
        """Send one request and read its whole answer."""
        await self.exchange(self._requests[number % len(self._requests)])

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and read its whole answer; return the answer's head."""
        wire = self._free.pop() if self._free else await self._connect()
        reader, writer = wire
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed += 1
            if not self._may_fail:
                raise RuntimeError(f"a request failed: {head.decode('latin-1')[:300]}")
        if length := _LENGTH.search(head):
            await reader.readexactly(int(length[1]))
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        self._free.append(wire)
        return head

    async def _connect(self) -> _Wire:
        return await asyncio.open_connection(*self._place, limit=_READ_BYTES)


def bodies(size: int, *, stream: bool) -> list[bytes]:
    """Return chat requests of a size in bytes: half is a shared prompt, half is unique."""
    rng = random.Random(size)

    def words(length: int) -> str:
        letters = "".join(rng.choices("etaoinshrdlu   ", k=(length + 1) // 2))
        return (letters * 2)[:length]

    half = (size - len(_chat("", "", stream=stream))) // 2
    shared = words(half)
    return [_chat(shared, words(half), stream=stream) for _ in range(DISTINCT_BODIES)]


def _chat(system: str, user: str, *, stream: bool) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return orjson.dumps({"model": "m", "messages": messages, "stream": stream})
