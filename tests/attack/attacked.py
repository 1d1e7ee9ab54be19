"""The system under attack: `laar serve` and Envoy as processes, and engines in this process."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import orjson
from bench.chaos.stand import Endpoint, Plan, Stand, standing

from laar.envoy.options import MESSAGE_TIMEOUT_S
from laar.fleet.membership import POOL_LABEL
from support import eventually

Test = Callable[..., Any]
Judge = Callable[..., None]
"""Records what was expected and what was seen, and asserts that it holds."""

DEADLINE_S = 900.0
ANSWER_S = 60.0
PATH = "/v1/chat/completions"
MODEL = "m"
FOREIGN = "m-foreign"
"""The model of the other pool, which no request may reach."""
HELD_BYTES = 64 << 20
"""Bytes of bodies that the picker may hold; its memory may grow by at most a multiple of this."""
OWN = 3
"""Endpoints of the pool that requests go to; the last endpoint belongs to the other pool."""
METRICS = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1\n'
)
_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)\r?$")


def each_case(name: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each value in turn; its failure names all values that failed.

    A case takes milliseconds, less than pytest needs for one. As between tests, the engines are
    healthy before each case, and another request must be served after it.
    """

    def decorate(test: Test) -> Test:
        @wraps(test)
        async def run(target: Attacked, judge: Judge, **given: Any) -> None:
            failed = []
            for value in values:
                case = str(value).encode("unicode_escape").decode()[:60]
                target.reset()
                try:
                    await test(target, partial(judge, case=case), **given, **{name: value})
                    target.reset()
                    await eventually(target.decides, what="a decision afterwards")
                except Exception as error:  # noqa: BLE001
                    failed.append(f"{case}: {error!r}")
            assert not failed, "\n".join(failed)

        asked = inspect.signature(test)
        run.__signature__ = asked.replace(  # type: ignore[attr-defined]
            parameters=[parameter for key, parameter in asked.parameters.items() if key != name]
        )
        return run

    return decorate


def chat(text: str = "hello", **fields: object) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], **fields})


def response(body: bytes, *headers: bytes, kind: bytes = b"application/json") -> bytes:
    """Return a complete HTTP response."""
    lines = (b"content-type: " + kind, b"content-length: %d" % len(body), *headers)
    return b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


def good(text: str = "well", **changes: object) -> bytes:
    """Return an engine's answer to a chat."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": MODEL}
    return response(orjson.dumps({**answer, "choices": [choice], "usage": usage, **changes}))


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it reached an engine."""

    line: bytes
    head: bytes
    body: bytes

    def header(self, name: str) -> list[str]:
        pattern = rb"(?im)^" + re.escape(name.encode()) + rb": *([^\r\n]*)\r?$"
        return [value.decode("latin-1") for value in re.findall(pattern, self.head)]


Behavior = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Engine:
    """An engine on a raw socket, which keeps received bytes and answers as the test defines."""

    address: str
    seen: list[Seen] = field(default_factory=list)
    answer: bytes | Behavior = field(default_factory=good)
    page: bytes | Behavior = b""
    pages: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._accept, host, int(port), limit=1 << 26)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0]
        body = b""
        if length := _LENGTH.search(head):
            body = await reader.readexactly(int(length[1]))
        elif b"chunked" in head.lower():
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readline()
            while (await reader.readline()).strip():
                pass
        seen = Seen(line, head, body)
        answer: bytes | Behavior
        if line.startswith(b"GET /metrics"):
            self.pages += 1
            answer = self.page or response(METRICS, kind=b"text/plain")
        elif line.startswith((b"GET /health", b"GET /v1/models")):
            answer = response(b'{"object":"list","data":[{"id":"m"}]}')
        elif b"user-agent: laar-probe" in head.lower():
            answer = response(b"")
        else:
            if b"user-agent: laar-" not in head.lower():  # the picker's own
                self.seen.append(seen)
            answer = self.answer
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(seen, writer)
        await writer.drain()
        return not writer.is_closing()


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's result; the status is 0 if the connection ended without an answer."""

    status: int
    head: bytes
    body: bytes

    @property
    def reason(self) -> str:
        found = re.search(rb"(?im)^x-laar-reason: *([^\r\n]*)\r?$", self.head)
        return found[1].decode() if found else ""

    def __str__(self) -> str:
        return f"{self.status or 'closed'} {self.reason}".rstrip()


class Attacked:
    """A system under attack, and its client."""

    def __init__(self, stand: Stand, engines: list[Engine]) -> None:
        self.stand = stand
        self.shape = stand.plan.shape
        self.engines = engines

    @property
    def own(self) -> list[Engine]:
        return self.engines[:OWN]

    @property
    def foreign(self) -> Engine:
        return self.engines[-1]

    def reset(self) -> None:
        """Restore every engine to health, and clear its records."""
        self.reset_seen()
        for engine in self.engines:
            engine.answer = good()
            engine.page = b""

    def reset_seen(self) -> None:
        """Clear every engine's records."""
        for engine in self.engines:
            engine.seen.clear()

    def reached(self) -> list[Seen]:
        """Return the requests at the engines, except the picker's own probes."""
        return [seen for engine in self.engines for seen in engine.seen]

    @asynccontextmanager
    async def connected(
        self, port: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        port = port or int(self.stand.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def raw(self, *parts: bytes, port: int | None = None, wait_s: float = ANSWER_S) -> Answer:
        """Send bytes; return the first answer after any informational ones."""
        async with self.connected(port) as (reader, writer):
            try:
                async with asyncio.timeout(wait_s):
                    for part in parts:
                        writer.write(part)
                        await writer.drain()
                    return await read_answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                return Answer(0, b"", b"")
            except TimeoutError:
                return Answer(-1, b"", b"")

    async def post(self, body: bytes, *headers: bytes, path: str = PATH) -> Answer:
        lines = (b"host: a", b"content-type: application/json", b"content-length: %d" % len(body))
        head = b"POST %s HTTP/1.1\r\n" % path.encode() + b"\r\n".join((*lines, *headers))
        return await self.raw(head + b"\r\n\r\n", body)

    async def decides(self) -> bool:
        """Return whether laar decides a plain request now, and an engine answers it."""
        answer = await self.post(chat("a bystander"))
        return answer.status == 200 and b"x-laar-model: m" in answer.head.lower()

    def memory_bytes(self) -> int:
        return self.stand.pickers[0].memory_bytes()

    def log(self) -> str:
        return self.stand.pickers[0].log_tail(1 << 20)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= 200 or status == 101:
            break
    body = b""
    if length := _LENGTH.search(head):
        body = await reader.readexactly(int(length[1]))
    elif b"transfer-encoding: chunked" in head.lower():
        try:
            while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
                body += await reader.readexactly(size)
                await reader.readline()
        except (OSError, asyncio.IncompleteReadError):
            body += b"<cut>"
    return Answer(status, head, body)


def one_pool(bootstrap: dict[str, object]) -> None:
    """Change the bootstrap so that all routes belong to pool ``a``."""
    listeners = bootstrap["static_resources"]["listeners"]
    (listener,) = [entry for entry in listeners if entry["name"] == "data"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        route["metadata"] = {"filter_metadata": {"laar": {"pool": "a"}}}


def patient(bootstrap: dict[str, object]) -> None:
    """Let Envoy also wait for a picker that a busy machine delays."""
    one_pool(bootstrap)
    timeout = f'"message_timeout": "{MESSAGE_TIMEOUT_S}s"'
    text = json.dumps(bootstrap)
    assert timeout in text
    bootstrap |= json.loads(text.replace(timeout, f'"message_timeout": "{ANSWER_S:g}s"'))


@asynccontextmanager
async def attacked(shape: str, **plan: Any) -> AsyncIterator[Attacked]:
    """Run a system with three engines in the clients' pool, and one in another."""
    own = Endpoint(model=MODEL, names=(MODEL,), known=(MODEL,))
    foreign = Endpoint(model=FOREIGN, names=(FOREIGN,), known=(FOREIGN, MODEL))
    engines: list[Engine] = []

    async def start_engines(stand: Stand) -> None:
        for address in stand.addresses:
            engines.append(Engine(address))
            await engines[-1].start()

    given = Plan(
        endpoints=(own,) * OWN + (foreign,),
        labels=({POOL_LABEL: "a"},) * OWN + ({POOL_LABEL: "b"},),
        shape=shape,
        engines=None,
        change=plan.pop("change", one_pool),
        settings={"bodies": {"max_held_bytes": HELD_BYTES}, **plan.pop("settings", {})},
        **plan,
    )
    try:
        async with standing(given, deadline_s=DEADLINE_S, before=start_engines) as stand:
            found = Attacked(stand, engines)
            deadline_s = time.monotonic() + 20
            while not await found.decides():
                assert time.monotonic() < deadline_s, found.log()[-3000:]
                await asyncio.sleep(0.1)
            yield found
    finally:
        for engine in engines:
            await engine.stop()
