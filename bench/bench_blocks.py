"""The longest blocks of the event loop, in milliseconds of CPU time: `python -m bench blocks`.

A picker with its real parts, but without ports, does what clients, operators, engines and other
pickers can make it do. A block is what the loop's thread takes between two turns of a task that
sleeps meanwhile, or one C call of another thread, during which no other runs Python. Other
processes slow both down, so the figure is the least of three runs. Above 20 ms, requests that
arrive meanwhile notice.

Name cases (by a part of their names) to run only these.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from io import IOBase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec
import orjson
import uvloop
import yaml

from bench.bench_decision import Caller, request_messages
from bench.options import parser_for
from laar.core.request import Api, Request
from laar.datalayer.kv_batches import Groups
from laar.datalayer.kv_events import KvEvents
from laar.health import Health, HealthSettings
from laar.prefix.blocks import Chain, blocks_in
from laar.server.admin.port import AdminPort
from laar.server.extproc.exchange import Exchange
from laar.server.flow_control import Waiting
from laar.server.health_service import HealthService
from laar.server.memory import keep_freed, keep_young
from laar.server.runner import Runner
from laar.settings import load
from laar.sharing.batches import SCHEMA, write_batch

LIMIT_MS = 20.0
REPEATS = 3
ENDPOINTS, DECISIONS, PROMPTS, UNREAD, LANES, BODY_BYTES = 500, 200, 200_000, 20_000, 500, 30 << 20
PAGES = ("/metrics", "/fleet", "/history", "/sessions", "/config", "/decisions", "/models")

Case = Callable[[], Awaitable[object]]


class Stand:
    """A picker with a large fleet, and what may block its event loop."""

    def __init__(self, directory: Path) -> None:
        self.rng = random.Random(1)
        self.path = directory / "laar.yaml"
        self.wanted: dict[str, Any] = {
            "endpoints": [
                {"address": f"10.0.{n // 250}.{n % 250 + 1}:8000", "models": [f"m{n % 5}", "auto"]}
                for n in range(ENDPOINTS)
            ],
            "flow": {"enabled": True},
            "prefix": {"max_bytes": 1 << 30},
            "share": {"snapshot_file": str(directory / "snapshot")},
        }
        self.path.write_text(yaml.safe_dump(self.wanted))
        self.runner = Runner(load(self.path), seed=1)
        self.picker = self.runner.picker
        self.picker.reloader = self.runner.reloader
        self.admin = AdminPort(self.picker, HealthService())._guard.app

    async def start(self) -> None:
        """Begin to serve, and decide on some requests."""
        self.runner.prepare()
        await self.runner.fleet.publish()
        for number in range(DECISIONS):
            body = orjson.dumps(_chat(f"{number} {'word ' * 200}"))
            await self.ask(request_messages(body, number))

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Yield the name of each case, and what to do."""
        yield "a copy of 30 MB, to judge the machine", self.copy
        for kind, body in _bodies(self.rng):
            yield (
                f"{len(body) >> 20 or 0.5} MB body, {kind}",
                partial(self.ask, request_messages(body, 0)),
            )
            yield f"/explain of it ({kind})", partial(self.http, "/explain", body)
        for tenants in (1, LANES):
            yield f"{LANES} lanes, {tenants} tenants", partial(self.lanes, tenants)
        yield f"settings reloaded, {ENDPOINTS:,} endpoints", self.reload
        for path in PAGES:
            yield f"{path}, {ENDPOINTS:,} endpoints", partial(self.http, path)
        yield "a frame of the page", self.frame
        yield "1,000 outcomes reported", self.outcomes
        for endpoints in (100, 1):
            yield f"{UNREAD:,} unread answers at {endpoints} endpoints", _unread(endpoints)
        yield "2 MB from another picker", self.shared
        for blocks in (16, 100_000):
            yield f"KV events of {blocks:,} blocks", partial(self.kv_events, blocks)
        yield f"{PROMPTS:,} prefixes saved", self.save

    async def copy(self) -> None:
        """Copy the longest body; the other figures are in proportion."""
        bytearray(bytes(BODY_BYTES))

    # -- clients -----------------------------------------------------------------------------------

    async def ask(self, messages: Sequence[bytes]) -> None:
        """Pass a request's messages to an exchange."""
        caller = Caller()
        exchange = Exchange(self.runner.processor, cast(Any, caller))
        for message in messages:
            exchange.receive(message)
            await caller.waited()
        exchange.closed()

    async def lanes(self, tenants: int) -> None:
        """Hold requests for many sets of endpoints, which overlap, then let all go."""
        in_flight, specs = self.picker.table.in_flight, self.picker.table.specs()
        flow, waiting = self.runner._flow, []
        assert flow is not None
        in_flight += 1e6
        for n in range(2 * LANES):
            near = specs[n % LANES : n % LANES + 50]
            request = Request(
                id=str(n),
                api=Api.CHAT,
                model="auto",
                spans=(f"{n} " * 100,),
                chars=400,
                tenant=f"t{n % tenants}",
                subset=frozenset(spec.address for spec in near),
            )
            asked = flow.ask(request, self.picker.clock())
            assert isinstance(asked, Waiting)
            waiting.append(asked.future)
            await asyncio.sleep(0)
        await asyncio.sleep(0.3)  # it is checked a few times
        in_flight -= 1e6
        flow._call()
        await asyncio.gather(*waiting)

    # -- operators ---------------------------------------------------------------------------------

    async def http(self, path: str, body: bytes = b"") -> None:
        """Pass a request to the admin port's application."""
        pieces = iter([body[at : at + 65536] for at in range(0, len(body), 65536)] or [b""])
        left = len(body)

        async def receive() -> dict[str, object]:
            nonlocal left
            await asyncio.sleep(0)
            left -= len(piece := next(pieces, b""))
            return {"type": "http.request", "body": piece, "more_body": left > 0}

        async def send(message: Any) -> None:
            assert message.get("status", 200) < 400, message

        scope: dict[str, object] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST" if body else "GET",
            "path": path,
            "query_string": b"limit=200" if path == "/decisions" else b"",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await self.admin(scope, receive, send)

    async def reload(self) -> None:
        """Change the cost and an endpoint."""
        self.wanted["routing"] = {"k_rtt": self.rng.random()}
        self.wanted["endpoints"][0]["region"] = str(self.rng.random())
        self.path.write_text(await asyncio.to_thread(yaml.safe_dump, self.wanted))
        await self.runner.reloader._reload(self.path, self.runner.apply)
        await self.runner.fleet.publish()
        assert not self.runner.reloader.is_refused

    async def frame(self) -> None:
        """Make a frame as the feed does."""
        shown = self.picker.observability.page.frame(self.picker.clock())
        orjson.dumps(shown, option=orjson.OPT_SERIALIZE_NUMPY)

    async def outcomes(self) -> None:
        """Report the outcomes of all decisions."""
        ids = [r.decision.id for r in self.picker.observability.memory.latest(1000)]
        told = [{"decision_id": each, "correct": self.rng.random() < 0.5} for each in ids]
        await self.http("/outcomes", orjson.dumps({"outcomes": told}))

    # -- engines and other pickers -----------------------------------------------------------------

    async def kv_events(self, blocks: int) -> None:
        """Receive a batch of stored and removed blocks, as long as may be."""
        key, made = self.picker.table.spec(0).key, []
        for at in range(0, 100_000, blocks):
            hashes, ids = list(range(at, at + blocks)), list(range(blocks))
            made.append(["BlockStored", hashes, at - 1 if at else None, ids, 1])
        made += [["BlockRemoved", event[1]] for event in made]
        payload = msgspec.msgpack.encode([0.0, made])
        events = KvEvents(self.runner.fleet.publishing, self.runner.fleet)
        await events._pass_on(key, payload, Groups())
        events._context.destroy()

    async def shared(self) -> None:
        """Receive the longest batch."""
        sharer = self.picker.sharer
        assert sharer is not None
        sharing = sharer.sharing
        prompt_bytes, keys = 400_000, [spec.key for spec in self.picker.table.specs()]
        entered = [
            ["p", n, keys[n % ENDPOINTS], prompt_bytes, _hashes(self.rng, blocks_in(prompt_bytes))]
            for n in range(256)
        ]
        batch = {
            "schema": SCHEMA,
            "namespace": sharing.settings.namespace,
            "sent_at_s": 0.0,
            "origin": str(self.rng.random()),
            "seq": 1,
            "key_id": sharing.key_id,
            "oldest_open": 0,
            "full": True,
            "loads": {},
            "records": entered,
        }
        await sharer._take([(write_batch(batch), 0.0)])
        assert not sharing.refused, sharing.refused

    async def save(self) -> None:
        """Write a snapshot."""
        prefixes, sharer = self.picker.prefixes, self.picker.sharer
        assert prefixes is not None
        assert sharer is not None
        assert sharer._file is not None
        while prefixes.index.uses < PROMPTS:
            slot, hashes = prefixes.index.uses % ENDPOINTS, array("Q", self.rng.randbytes(32))
            prefixes.index.settle(prefixes.index.insert(slot, Chain(hashes, 4 * 64)))
        await sharer._save(sharer._file)


def _unread(endpoints: int) -> Case:
    """Return a check of attempts whose answers have been under way for ten seconds."""
    health, now = Health(HealthSettings(), rng=random.Random(1)), 10.0
    for number in range(UNREAD):
        health.sent(number % endpoints, "m", stream=True, predicted_s=1.0, tokens=9.0, now=0.0)

    async def look() -> None:
        nonlocal now
        for _ in range(20):
            now += 1.0
            health.look(now)
            await asyncio.sleep(0)

    return look


def _hashes(rng: random.Random, count: int) -> bytes:
    return rng.randbytes(8 * count)


def _chat(content: object) -> dict[str, object]:
    return {"model": "auto", "messages": [{"role": "user", "content": content}]}


def _bodies(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield bodies near the limit of their size, and one near that of what the loop parses."""
    words = ("fleet", "prompt", "é", "引擎", '"', "\n", "{", "cache, " * 40)
    prose = "the fleet has a cache " * (BODY_BYTES // 23)
    yield "prose", orjson.dumps(_chat(prose))
    yield "escapes and scripts", orjson.dumps(_chat("".join(rng.choices(words, k=700_000))))
    texts = [{"type": "text", "text": prose[:1500]} for _ in range(BODY_BYTES // 1600)]
    yield "many texts", orjson.dumps(_chat(texts))
    images = [{"type": "image_url", "image_url": {"url": "data:," + "Q" * 2**20}}] * 29
    yield "images", orjson.dumps(_chat(images))
    video = {"type": "video_url", "video_url": {"url": "data:," + "Q" * (29 << 20)}}
    yield "a video", orjson.dumps(_chat([video]))
    tokens = list(range(1000, 9000)) * 700
    yield "token ids", orjson.dumps({"model": "auto", "prompt": tokens})
    yield "values", orjson.dumps(_chat("a") | {"metadata": [[[]]] * 99_000})


class Calls:
    """The longest C call of the threads that were started since, in seconds of their CPU time.

    Input and output are left out: they let other threads run.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began = threading.local()
        threading.setprofile(self._seen)

    def _seen(self, _frame: object, event: str, function: object) -> None:
        if event == "c_call":
            self._began.at = time.thread_time()
        elif event == "c_return" and not isinstance(getattr(function, "__self__", 0), IOBase):
            spent_s = time.thread_time() - getattr(self._began, "at", math.inf)
            self.longest_s = max(self.longest_s, spent_s)


async def longest_ms(call: Case, calls: Calls) -> float:
    """Return the longest block while `call` runs."""
    longest_s, over = 0.0, False
    calls.longest_s = 0.0

    async def sleep() -> None:
        nonlocal longest_s
        while not over:
            began = time.thread_time()
            await asyncio.sleep(0.0005)
            longest_s = max(longest_s, time.thread_time() - began)

    sleeping = asyncio.create_task(sleep())
    await asyncio.sleep(0.01)
    await call()
    await asyncio.sleep(0.01)
    over = True
    await sleeping
    return 1e3 * max(longest_s, calls.longest_s)


async def run(directory: Path, names: Sequence[str]) -> bool:
    """Print a line for each case; return whether all are within the limit."""
    calls, stand = Calls(), Stand(directory)
    await stand.start()
    keep_freed()
    keep_young()
    met = True
    for name, call in stand.cases():
        if not names or any(part in name for part in names):
            found_ms = min([await longest_ms(call, calls) for _ in range(REPEATS)])
            met = met and found_ms <= LIMIT_MS
            print(f"{name:48}{found_ms:8.1f} ms", flush=True)
    return met


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and return 3 if a block was too long."""
    parser = parser_for("blocks", __doc__)
    parser.add_argument("cases", nargs="*", help="parts of the names of cases; default: all")
    names = parser.parse_args(argv).cases
    with TemporaryDirectory() as directory:
        return 0 if uvloop.run(run(Path(directory), names)) else 3
