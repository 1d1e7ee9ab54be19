"""Clients that stall cannot make Envoy exceed its memory limit, or cost another request."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from attacked import DEADLINE_S, PATH, Attacked, Judge, Seen, attacked, chat, good, one_pool

from laar.envoy.options import BootstrapOptions
from support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
LIMIT_BYTES = BootstrapOptions().memory_bytes
FEW, LONG_BYTES, LINGER_S = 100, 31 * MIB, 5.0
MOST = 900  # that this process and its engines can serve at a time
BYSTANDERS, AT_A_TIME = 300, 6  # a loss of 1 % is seen
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DATA = b"data: " + b"x" * 60_000 + b"\n\n"
TCP_USER_TIMEOUT = 18  # Linux's
CHUNK = b"%x\r\n%b\r\n" % (len(DATA), DATA)

Sent = AsyncIterator[bytes]


def head(length: bytes, path: str = PATH) -> bytes:
    lines = (b"POST %b HTTP/1.1" % path.encode(), b"host: a", b"content-type: application/json")
    return b"\r\n".join((*lines, length)) + b"\r\n\r\n"


async def upload(size: int = LONG_BYTES, *, missing: int = 10, path: str = PATH) -> Sent:
    """Send a body without its last bytes."""
    yield head(b"content-length: %d" % size, path)
    begin = b'{"model":"m","messages":[{"role":"user","content":"'
    yield begin
    for at in range(len(begin), size - 2, MIB):
        yield b"x" * min(MIB, size - 2 - at - missing)
    if not missing:
        yield b'"}'


async def chunks() -> Sent:
    yield head(b"transfer-encoding: chunked")
    for _ in range(LONG_BYTES // MIB):
        yield b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)


async def trickle() -> Sent:
    async for part in upload():
        yield part
    while True:
        await asyncio.sleep(1.0)
        yield b"x"


async def unread() -> Sent:
    body = chat("unread", stream=True)
    yield head(b"content-length: %d" % len(body)) + body


STALLS: dict[str, Callable[[], Sent]] = {
    "stalled uploads": upload,
    "stalled files": lambda: upload(path="/v1/files"),
    "trickling uploads": trickle,
    "stalled chunks": chunks,
    "whole prompts, slow engines": lambda: upload(missing=0),
    "stalled uploads of 1 MB": lambda: upload(1_000_000),
    "short stalled uploads": lambda: upload(90_000),
    "unread answers": unread,
}


async def engine(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answer at length, or late."""
    if b"unread" in seen.body:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        writer.write(SSE)
        for _ in range(200):
            writer.write(CHUNK)
            await writer.drain()
    if len(seen.body) > MIB:
        await asyncio.sleep(LINGER_S)
    writer.write(good())


@pytest.mark.parametrize("name", STALLS)
async def test_stalled_clients_cost_no_other_request(
    target: Attacked, judge: Judge, name: str
) -> None:
    await hold_out(target, judge, name, FEW, LIMIT_BYTES)


@pytest.mark.parametrize("name", ["unread answers", "short stalled uploads"])
@pytest.mark.parametrize("mib", [256, 512, 2048])
async def test_memory_has_room_for_what_all_clients_can_make_envoy_hold(
    envoy_binary: Path, judge: Judge, name: str, mib: int
) -> None:
    options = BootstrapOptions(memory_bytes=mib * MIB)
    clients = min(MOST, int(0.9 * options.most_connections))
    async with attacked("gateway", memory_bytes=mib * MIB) as target:
        await hold_out(target, judge, name, clients, mib * MIB)


async def test_who_reads_nothing_is_cut_off_and_who_reads_slowly_is_not(envoy_binary: Path) -> None:
    def hasty(bootstrap: dict[str, Any]) -> None:
        one_pool(bootstrap)
        [data] = (
            one for one in bootstrap["static_resources"]["listeners"] if one["name"] == "data"
        )
        [unread_for] = (one for one in data["socket_options"] if one["name"] == TCP_USER_TIMEOUT)
        unread_for["int_value"] = 1500

    ends = Counter[bytes]()
    async with attacked("gateway", change=hasty) as target:

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            name = next((name for name in (b"idle", b"slow") if name in seen.body), b"")
            if not name:  # the picker's probe
                writer.write(good())
                return
            writer.write(SSE)
            try:
                for _ in range(50 if name == b"slow" else 500):
                    writer.write(CHUNK)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                ends[name + b", whole"] += 1
            except OSError:
                ends[name + b", cut"] += 1

        for own in target.own:
            own.answer = answer
        async with target.connected() as (_, idle), target.connected() as (reads, slow):
            idle.transport.pause_reading()  # type: ignore[attr-defined]
            for name, writer in (("idle", idle), ("slow", slow)):
                asked = chat(name, stream=True)
                writer.write(head(b"content-length: %d" % len(asked)) + asked)
            got = b""
            async with asyncio.timeout(60.0):
                while not got.endswith(b"0\r\n\r\n"):
                    slow.transport.pause_reading()  # type: ignore[attr-defined]
                    await asyncio.sleep(0.3)  # less than the limit, while the buffers are full
                    slow.transport.resume_reading()  # type: ignore[attr-defined]
                    got += await reads.read(1 << 18)
            await eventually(lambda: ends.total() == 2, what="the end of both")
    assert ends == {b"idle, cut": 1, b"slow, whole": 1}


async def hold_out(
    target: Attacked, judge: Judge, name: str, clients: int, limit_bytes: int
) -> None:
    """Assert that Envoy serves others, within its memory, while clients stall."""
    for own in target.own:
        own.answer = engine
    envoy = target.stand.envoy
    assert envoy is not None
    over, peak, got = asyncio.Event(), 0, Counter[int]()

    async def stall() -> None:
        async with target.connected() as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            try:
                async for part in STALLS[name]():
                    writer.write(part)
                    await writer.drain()
            except OSError:  # Envoy has reset it
                pass
            await over.wait()

    async def watch() -> None:
        nonlocal peak
        while not over.is_set():
            peak = max(peak, envoy.memory_bytes())
            await asyncio.sleep(0.02)

    async def bystand() -> None:
        while got.total() < BYSTANDERS or loop.time() < least_until:
            body = chat("a bystander")  # slow answers count too: the clients keep two cores busy
            sent = head(b"content-length: %d" % len(body)) + body
            got[(await target.raw(sent, wait_s=30.0)).status] += 1
            await asyncio.sleep(0.05)

    loop = asyncio.get_running_loop()
    least_until = loop.time() + 2 * LINGER_S
    watching = asyncio.create_task(watch())
    stalled = [asyncio.create_task(stall()) for _ in range(clients)]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(bystand() for _ in range(AT_A_TIME)))
    over.set()
    for task in stalled:
        task.cancel()
    await asyncio.gather(*stalled, return_exceptions=True)
    await watching
    holds = got.total() - got[200] <= 0.01 * got.total() and 0 < peak < limit_bytes
    judge(
        f"1 % of bystanders lost at most, Envoy below {limit_bytes // MIB} MiB",
        f"{dict(got)}, {peak // MIB} MiB of {clients} clients",
        holds,
    )
