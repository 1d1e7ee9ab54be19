"""Attacks on the ext_proc and admin ports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest
from attacked import Attacked, Judge, chat

from support import eventually

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FLOOD_S = 3.0
FLOOD_FRAMES = 60_000
BYSTANDERS = 30
MOST_MB = 350
"""The limit on growth of memory. The unfinished messages of a connection may take 256 MiB, half of
`HELD_BYTES`, and each of their 16,000 calls some 5 KB."""
ROUNDS = 3
"""Floods to try: a busy machine also leaves requests undecided, but not in every flood."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return an HPACK header, neither compressed nor indexed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)
UNFINISHED = b"\0" + (4 << 20).to_bytes(4, "big")
END_HEADERS, END_STREAM = 4, 1


def streams(*frames: tuple[int, int, bytes]) -> Iterator[bytes]:
    """Yield the same frames on one stream after another."""
    for number in range(1, 2 * FLOOD_FRAMES, 2):
        opened = frame(HEADERS, END_HEADERS, number, CALL)
        yield opened + b"".join(frame(kind, flags, number, data) for kind, flags, data in frames)


def again(data: bytes) -> Iterator[bytes]:
    for _ in range(FLOOD_FRAMES):
        yield data


def one_stream(first: bytes, more: bytes) -> Iterator[bytes]:
    yield first
    yield from again(more)


CANCEL = (RST, 0, b"\0\0\0\x08")
FLOODS = {
    "rapid reset": lambda: streams(CANCEL),
    "heard and reset": lambda: streams((DATA, 0, b"\0\0\0\1\0" + b"\x0a" * 256), CANCEL),
    "undecodable messages": lambda: streams((DATA, END_STREAM, b"\0\0\0\0\x32" + b"\xff" * 50)),
    "open streams": lambda: streams(),
    "unfinished messages": lambda: streams((DATA, 0, UNFINISHED + b"x" * 16_000)),
    "CONTINUATION": lambda: one_stream(frame(HEADERS, 0, 1, CALL), frame(CONTINUATION, 0, 1, b"")),
    "big CONTINUATION": lambda: one_stream(
        frame(HEADERS, 0, 1, CALL), frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 100) * 100)
    ),
    "SETTINGS": lambda: again(frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff")),
    "PING": lambda: again(frame(PING, 0, 0, b"12345678")),
    "PRIORITY": lambda: again(frame(PRIORITY, 0, 1, b"\0\0\0\0\x10")),
    "unknown frames": lambda: again(frame(0xFA, 0xFF, 0, b"x" * 100)),
    "empty DATA": lambda: one_stream(frame(HEADERS, END_HEADERS, 1, CALL), frame(DATA, 0, 1)),
    "window overflow": lambda: again(frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff")),
    "table of 2^31": lambda: again(frame(SETTINGS, 0, 0, b"\0\1\x7f\xff\xff\xff")),
    "HPACK references": lambda: streams((HEADERS, END_HEADERS, b"\x82" * 16_000)),
    "HPACK bomb": lambda: one_stream(
        frame(HEADERS, END_HEADERS, 1, CALL + b"\x40\x01x\x7f\x80\x1e" + b"y" * 3967),
        frame(HEADERS, END_HEADERS, 3, b"\xbe" * 4000),
    ),
    "random bytes": lambda: again(bytes(range(256))),
}


async def flood(target: Attacked, pieces: Iterator[bytes], seconds: float) -> int:
    """Send as fast as the port accepts, and read nothing; return the number of chunks sent."""
    sent = 0
    until_s = time.monotonic() + seconds
    port = target.stand.ext_proc_port
    with contextlib.suppress(OSError, TimeoutError):
        async with target.connected(port) as (_, writer), asyncio.timeout(seconds):
            writer.write(PREFACE + frame(SETTINGS))
            for piece in pieces:
                writer.write(piece)
                sent += 1
                if sent % 16 == 0:
                    await writer.drain()
                    await asyncio.sleep(0)
                if time.monotonic() > until_s:
                    break
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_on_the_ext_proc_port_closes_only_its_own_connection(
    target: Attacked, judge: Judge, name: str
) -> None:
    before = target.memory_bytes()
    seen, holds = "", False
    for _ in range(ROUNDS):
        decided, failed, sent = await _flooded(target, FLOODS[name]())
        grown = (target.memory_bytes() - before) >> 20
        seen = f"{decided} decided, {failed} failed, {grown} MB, {sent} sent"
        holds = decided >= 0.95 * BYSTANDERS and failed == 0 and grown < MOST_MB
        if holds or grown >= MOST_MB:
            break
        await eventually(target.decides, what="a decision", timeout_s=30)
    judge(f">= 95 % of {BYSTANDERS} decided, 0 failed, < {MOST_MB} MB more", seen, holds)


async def _flooded(target: Attacked, pieces: Iterator[bytes]) -> tuple[int, int, int]:
    """Return the numbers of other requests decided and failed during a flood, and its size."""
    attack = asyncio.create_task(flood(target, pieces, FLOOD_S))
    await asyncio.sleep(0.2)
    decided = failed = 0
    for _ in range(BYSTANDERS):
        answer = await target.post(chat("a bystander"))
        decided += b"x-laar-model" in answer.head
        failed += answer.status != 200
        await asyncio.sleep(0.05)
    return decided, failed, await attack


@pytest.mark.parametrize("name", ["rapid reset", "CONTINUATION", "window overflow", "random bytes"])
async def test_a_short_flood_is_cut_off(target: Attacked, judge: Judge, name: str) -> None:
    sent = await flood(target, FLOODS[name](), 0.3)

    async def recovers() -> bool:
        return all([await target.decides() for _ in range(3)])

    # The picker first reads what the kernel has accepted; meanwhile Envoy may do without it.
    await eventually(recovers, what=f"three decisions in a row after {sent} pieces")
    judge("3 of 3 decided after it", f"3, {sent} sent", True)
