"""Fixtures for tests of collectors: a recording sink, a server, and waiting for a condition."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from laar.faults import Fault
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec, Served
from laar.prefix.tokens import Stored


@dataclass
class Recorder:
    """Implements all sinks of the data layer."""

    specs: dict[str, tuple[EndpointSpec, ...]] = field(default_factory=dict)
    replaced: int = 0
    readings: list[tuple[str, Reading, float]] = field(default_factory=list)
    round_trips: list[tuple[str, float | None, float]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    past_problems: list[str] = field(default_factory=list)
    kv_events: list[tuple[Any, ...]] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)
    published: dict[str, Mapping[str, str]] = field(default_factory=dict)
    kv_past: list[bool] = field(default_factory=list)
    """For each cleared cache, whether that was in the past."""
    kv_emptied_s: list[float] = field(default_factory=list)
    names: list[tuple[str, Served]] = field(default_factory=list)

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        self.specs[source] = tuple(specs)
        self.replaced += 1

    def ranked(self, address: str, ranks: int) -> None:
        self.ranks[address] = ranks

    def reading(self, address: str, reading: Reading, now: float) -> None:
        self.readings.append((address, reading, now))

    def served(self, address: str, served: Served) -> None:
        self.names.append((address, served))

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        self.round_trips.append((address, rtt_s, now))

    def problem(self, fault: Fault, message: str | None, name: str = "") -> None:
        source = f"{fault} {name}".rstrip()
        if not message:  # None or `GONE`
            self.problems.pop(source, None)
        else:
            self.problems[source] = message
            self.past_problems.append(message)

    def publishes(self, address: str, labels: Mapping[str, str]) -> None:
        self.published[address] = labels

    def stored(self, address: str, event: Stored) -> None:
        self.kv_events.append(("stored", address, tuple(event.hashes), event.parent))

    def removed(
        self, address: str, block_hashes: Sequence[Any], tier: int = 0, *, is_state: bool = False
    ) -> None:
        assert not is_state
        self.kv_events.append(("removed", address, tuple(block_hashes), *([tier] if tier else [])))

    def cleared(self, address: str, *, past: bool = False, at_s: float = math.nan) -> None:
        self.kv_events.append(("cleared", address))
        self.kv_past.append(past)
        self.kv_emptied_s.append(at_s)

    def lost(self, address: str) -> None:
        self.kv_events.append(("lost", address))

    @property
    def addresses(self) -> list[str]:
        return sorted(spec.address for specs in self.specs.values() for spec in specs)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Return a function that waits for a condition, and fails at a deadline."""

    async def wait(condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, "waited in vain for a condition"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def start() -> AsyncIterator[Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]]:
    """Return a function that runs an endless coroutine until the end of the test."""
    tasks: list[asyncio.Task[Any]] = []

    def run(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        tasks.append(asyncio.create_task(coroutine))
        return tasks[-1]

    yield run
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Return a function that serves all paths on loopback with a handler, and returns host:port."""
    servers: list[TestServer] = []

    async def run(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return f"127.0.0.1:{server.port}"

    yield run
    for server in servers:
        await server.close()
