"""Clients with conversations through an Envoy, at a fixed rate or as fast as possible."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import orjson

PATIENCE_S = 10.0
_EACH = 4  # conversations per client, so that turns of one are rarely sent back to back
_FIRST_CHARS, _MORE_CHARS, _MOST_CHARS = 2000, 600, 12_000
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HIT = re.compile(rb"\r\nx-hit: *([01-])", re.IGNORECASE)


class Turned(NamedTuple):
    """One request; times are monotonic. `hit` is None for a first turn, or a failed one."""

    began_s: float
    took_s: float
    ok: bool
    hit: bool | None


class Talkers:
    """Clients of one Envoy.

    Args:
        url: URL of Envoy, `http://HOST:PORT`.
        clients: number of clients, each with one connection.
        rate: requests a second of all clients together; 0 for as fast as possible.
        seed: seed of the texts and the order.
    """

    def __init__(self, url: str, *, clients: int, rate: float = 0.0, seed: int = 1) -> None:
        host, _, port = url.partition("://")[2].partition(":")
        self._place = host, int(port)
        self._clients = clients
        self._pause_s = clients / rate if rate else 0.0
        self._seed = seed
        self.ended: list[Turned] = []

    async def run(self, until: Callable[[], bool]) -> None:
        """Run until `until` returns True; finish requests in flight."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._client(number, until))

    async def during(self, seconds: float) -> list[Turned]:
        """Run for a while; return the requests that ended."""
        first, ends = len(self.ended), time.monotonic() + seconds
        await self.run(lambda: time.monotonic() >= ends)
        return self.ended[first:]

    async def _client(self, number: int, until: Callable[[], bool]) -> None:
        rng = random.Random(f"{self._seed} {number} {len(self.ended)}")
        talks = [_Talk(rng, f"{self._seed}-{number}-{len(self.ended)}-{n}") for n in range(_EACH)]
        due = time.monotonic() + rng.random() * self._pause_s
        wire: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not until():
            if self._pause_s:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = max(due + self._pause_s, time.monotonic() - self._pause_s)
            began = time.monotonic()
            ok, hit = False, None
            try:
                async with asyncio.timeout(PATIENCE_S):
                    wire = wire or await asyncio.open_connection(*self._place)
                    ok, hit = await _exchange(*wire, rng.choice(talks).request())
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                if wire is not None:
                    wire[1].close()
                wire = None
            self.ended.append(Turned(began, time.monotonic() - began, ok, hit if ok else None))
        if wire is not None:
            wire[1].close()
            with contextlib.suppress(OSError):
                await wire[1].wait_closed()


class _Talk:
    def __init__(self, rng: random.Random, name: str) -> None:
        self._rng, self._name, self._again = rng, name, 0
        self._turn, self._text = 0, ""

    def request(self) -> bytes:
        """Return the next turn as an HTTP request."""
        if not self._text or len(self._text) > _MOST_CHARS:
            self._again += 1
            self._turn, self._text = 0, self._rng.randbytes(_FIRST_CHARS // 2).hex()
        else:
            self._turn += 1
            self._text += self._rng.randbytes(_MORE_CHARS // 2).hex()
        message = {"role": "user", "content": self._text}
        body = orjson.dumps({"model": "m", "messages": [message]})
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json"
            f"\r\nx-talk: {self._name}-{self._again}\r\nx-turn: {self._turn}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[bool, bool | None]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    await reader.readexactly(int(length[1]) if length else 0)
    hit = _HIT.search(head)
    value = hit[1] if hit else b"-"
    return head.startswith(b"HTTP/1.1 200"), None if value == b"-" else value == b"1"


def hit_rate(ended: list[Turned]) -> float:
    """Return the share of later turns that reached the endpoint with the previous turn."""
    hits = [one.hit for one in ended if one.hit is not None]
    return sum(hits) / len(hits) if hits else float("nan")


def failed(ended: list[Turned]) -> int:
    """Return the number of requests not answered by a 200."""
    return sum(not one.ok for one in ended)
