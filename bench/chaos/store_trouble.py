"""Troubles of the store through which pickers share state; none of them may cost a request."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import Any

from bench.chaos.stand import Stand
from bench.chaos.trouble import Trouble

__all__ = ["STORE_TROUBLES", "apart"]

_STREAM, _SNAPSHOT, _KEY = (f"laar:{{laar}}:{name}" for name in ("records", "snapshot", "key"))
_PAUSE_S = 0.4
_WRONG = (b"", b"\xff not a batch", b'{"v":99,"ns":"laar"}', b'{"v":2,"ns":"laar","from":7}')


async def _ask(stand: Stand, *command: object) -> Any:
    from redis.asyncio import Redis

    client: Any = Redis.from_url(f"unix://{stand.store_socket}", socket_timeout=5.0)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


async def _end(stand: Stand, rng: random.Random, seconds: float) -> None:
    """Kill the store and restart it empty."""
    assert stand.store is not None
    await stand.store.end(signal.SIGKILL)
    await asyncio.sleep(seconds)
    await stand.start_store()


async def _hang(stand: Stand, rng: random.Random, seconds: float) -> None:
    assert stand.store is not None
    stand.store.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        stand.store.send(signal.SIGCONT)


async def _slow(stand: Stand, rng: random.Random, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        await _ask(stand, "CLIENT", "PAUSE", int(1000 * rng.uniform(0.1, _PAUSE_S)), "ALL")
        await asyncio.sleep(_PAUSE_S + 0.05)


async def _full(stand: Stand, rng: random.Random, seconds: float) -> None:
    await _ask(stand, "CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(seconds)
    await _ask(stand, "CONFIG", "SET", "maxmemory", "0")


async def _wrong(stand: Stand, rng: random.Random, seconds: float) -> None:
    for content in _WRONG:
        await _ask(stand, "XADD", _STREAM, "*", "o", "stranger", "b", content)
    await _ask(stand, "XADD", _STREAM, "*", "else", "entirely")
    await _ask(stand, "SET", _SNAPSHOT, rng.choice(_WRONG))
    await asyncio.sleep(seconds / 2)
    await _ask(stand, "DEL", _STREAM)
    await _ask(stand, "SET", _STREAM, "a string")
    await _ask(stand, "SET", _KEY, "no key")
    await asyncio.sleep(seconds / 2)
    await _ask(stand, "FLUSHALL")


STORE_TROUBLES = (
    Trouble(name="store SIGKILL", act=_end, seconds=(0.5, 4.0)),
    Trouble(name="store SIGSTOP", act=_hang),
    Trouble(name="store slow", act=_slow),
    Trouble(name="store full", act=_full),
    Trouble(name="store has wrong data", act=_wrong, seconds=(1.0, 3.0)),
)


async def apart(stand: Stand, within_s: float) -> list[str]:
    """Return the pickers that do not yet share with all others after `within_s`."""
    if stand.plan.store is None:
        return []
    deadline_s = time.monotonic() + within_s
    alone: list[str] = []
    while time.monotonic() < deadline_s:
        alone = []
        for index in range(stand.plan.pickers):
            metrics = await stand.metrics(index)
            together = metrics.get("laar_share_connected") == 1.0
            if not (together and metrics["laar_share_peers"] >= stand.plan.pickers - 1.0):
                alone.append(f"picker-{index}")
        if not alone:
            break
        await asyncio.sleep(0.2)
    return alone
