"""Run endpoints that cost almost nothing: ``python -m bench.instant SPEC.json``.

They parse just enough HTTP/1.1 to accept requests from Envoy or a scraper, and answer immediately,
with unlimited concurrency. An answer is one JSON text, N events for `?chunks=N`, or one event and
no end for `?chunks=0`. All say something else: a picker compares equal answers between endpoints.

A request with an `x-talk` header is a turn of a conversation. Its answer is delayed by the prefill
of the uncached part. Without the delay, a picker would learn that prefill is free and rightly send
each turn to the least busy endpoint. Each endpoint remembers the last turn of each conversation;
the `x-hit` header says whether it had the previous turn.
"""

from __future__ import annotations

import asyncio
import re
import sys
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import uvloop

_READ_S = 5e-6  # per byte of a body: 20 us per token
_WORDS = " the word %08d"
_ANSWER = orjson.dumps(
    {
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": _WORDS}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
    }
)
_MODELS = orjson.dumps({"data": [{"id": "m"}]})
_METRICS = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
_EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
_EVENT %= _WORDS.encode()
_DONE = (
    b'data: {"usage":{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101}}\n\n'
    b"data: [DONE]\n\n"
)
_EVENT_GAP_S = 0.001
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TALK = re.compile(rb"\r\nx-talk: *(\S+)\r\nx-turn: *(\d+)", re.IGNORECASE)
_CHUNKS = re.compile(rb"\?chunks=(\d+)")
_HEAD_END = b"\r\n\r\n"
_numbers = count()


class Connection(asyncio.Protocol):
    """A connection from Envoy or a scraper.

    Args:
        turns: last turn and bytes of each conversation at this endpoint.
    """

    def __init__(self, turns: dict[bytes, tuple[int, int]]) -> None:
        self._turns = turns
        self._transport: Any = None
        self._read = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._read += data
        while (end := self._read.find(_HEAD_END)) >= 0:
            head = self._read[:end]
            found = _LENGTH.search(head)
            if found is None and b"transfer-encoding: chunked" in head.lower():
                last = self._read.find(b"0" + _HEAD_END, end)
                if last < 0:
                    return
                whole = last + 5
            else:
                whole = end + 4 + (int(found[1]) if found else 0)
            if len(self._read) < whole:
                return
            self._read = self._read[whole:]
            if chunks := _CHUNKS.search(head):
                self._streaming = asyncio.create_task(self._stream(int(chunks[1])))
            else:
                self._answer(head + b"\r\n", whole - end)

    async def _stream(self, chunks: int) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        self._transport.write(head + b"transfer-encoding: chunked\r\n\r\n" + _event())
        for _ in range(1, chunks):
            await asyncio.sleep(_EVENT_GAP_S)
            self._transport.write(_event())
        if chunks:
            self._transport.write(_chunk(_DONE) + b"0\r\n\r\n")

    def _answer(self, head: bytes, length: int) -> None:
        hit, body, unread = b"-", _ANSWER % next(_numbers), 0
        if head.startswith(b"GET"):
            body = _METRICS if b" /metrics" in head else _MODELS
        elif talk := _TALK.search(head):
            name, turn = talk[1], int(talk[2])
            last, held = self._turns.get(name, (-1, 0))
            unread = length
            if turn:
                hit = b"0"
                if last == turn - 1:
                    hit, unread = b"1", length - held
            self._turns[name] = turn, length
        answer = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-hit: %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (hit, len(body), body)
        )
        asyncio.get_running_loop().call_later(_READ_S * unread, self._transport.write, answer)


def _event() -> bytes:
    return _chunk(_EVENT % next(_numbers))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(spec: list[dict[str, Any]]) -> None:
    """Run the endpoints until cancelled."""
    loop = asyncio.get_running_loop()
    for one in spec:
        turns: dict[bytes, tuple[int, int]] = {}

        def connected(turns: dict[bytes, tuple[int, int]] = turns) -> Connection:
            return Connection(turns)

        await loop.create_server(connected, "127.0.0.1", int(one["port"]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(orjson.loads(Path(sys.argv[1]).read_bytes())))
