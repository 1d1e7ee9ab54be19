"""Neither a store that anyone may write to nor a stopping picker affects a request."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from attacked import Answer, Attacked, Judge, attacked, chat

from support import eventually

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

RECORDS = "laar:{laar}:records"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(envoy_binary: Path) -> AsyncIterator[Attacked]:
    """Yield a stand with two pickers that share through a store."""
    pytest.importorskip("redis", reason="needs the Redis client: pip install 'laar[share]'")
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    async with attacked("standalone", store=Path(found), pickers=2) as target:
        yield target


async def load(target: Attacked, seconds: float, *, rate_per_s: float = 30.0) -> list[Answer]:
    """Send plain requests in an open loop."""
    rng, due_s = random.Random(1), time.monotonic()
    until_s = due_s + seconds
    tasks = []
    while (due_s := due_s + rng.expovariate(rate_per_s)) < until_s:
        await asyncio.sleep(due_s - time.monotonic())
        tasks.append(asyncio.create_task(target.post(chat(f"question {len(tasks)}"))))
    return list(await asyncio.gather(*tasks))


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(3):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def entries(name: str, own: list[bytes], rng: random.Random) -> list[bytes]:
    """Yield entries for the stream of records; `own` are entries of the pickers themselves."""
    return {
        "random bytes": [rng.randbytes(2000) for _ in range(200)],
        "bad UTF-8": [b'{"\x88":1}', b'["\xff\xfe"]', *(mutated(own[0], rng) for _ in range(200))],
        "200,000 deep": [b"[" * 200_000],
        "packed, 200,000 deep": [b"\x91" * 200_000],
        "length of 4 GiB": [
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
        ],
        "30 MB": [rng.randbytes(30_000_000)],
        "own entries again": own * 50,
        "own entries cut": [one[: len(one) // 2] for one in own],
        "empty": [b""] * 50,
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "random bytes",
        "200,000 deep",
        "packed, 200,000 deep",
        "length of 4 GiB",
        "30 MB",
        "own entries again",
        "own entries cut",
        "empty",
        "bad UTF-8",
    ],
)
async def test_foreign_entries_in_the_store_do_not_stop_sharing(
    shared: Attacked, judge: Judge, name: str
) -> None:
    from redis.asyncio import Redis

    client = Redis(unix_socket_path=str(shared.stand.store_socket))
    await client.flushall()  # clear what other cases wrote

    async def shares() -> bool:
        return bool(await client.xlen(RECORDS))

    running = asyncio.create_task(load(shared, 12.0))
    await eventually(shares, what="the pickers' own entries", timeout_s=10)
    before, logged = shared.memory_bytes(), len(shared.log())
    found = await client.xrange(RECORDS, count=20)
    fields = found[0][1]
    own = [value for _, entry in found for value in entry.values()]
    (key,) = [name for name, value in fields.items() if value == max(fields.values(), key=len)]
    for entry in entries(name, own, random.Random(1)):
        await client.xadd(RECORDS, {**fields, key: entry})
    answers = await running
    await client.aclose()
    failed = sum(answer.status != 200 for answer in answers)
    said = shared.log()[logged:]
    grown = (shared.memory_bytes() - before) >> 20
    stopped = "starts again" in said or "Traceback" in said
    holds = failed == 0 and not stopped and grown < 300
    seen = f"{failed} of {len(answers)} failed, {grown} MB, {'stopped' if stopped else 'shares'}"
    judge("0 failed, sharing goes on, < 300 MB more", seen, holds)


@pytest.mark.parametrize("name", ["wrong types", "FLUSHALL", "maxmemory"])
async def test_a_corrupted_store_fails_no_request(
    shared: Attacked, judge: Judge, name: str
) -> None:
    from redis.asyncio import Redis

    client = Redis(unix_socket_path=str(shared.stand.store_socket))
    running = asyncio.create_task(load(shared, 4.0))
    await asyncio.sleep(1.0)
    if name == "wrong types":
        for key in await client.keys("laar:*"):
            await client.delete(key)
            await client.set(key, "text")
    elif name == "FLUSHALL":
        await client.flushall()
    else:
        await client.config_set("maxmemory", "1mb")
    answers = await running
    await client.config_set("maxmemory", "0")
    await client.flushall()
    await client.aclose()
    failed = sum(answer.status != 200 for answer in answers)
    judge("0 failed", f"{failed} of {len(answers)}", failed == 0)
