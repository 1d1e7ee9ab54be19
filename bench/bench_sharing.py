"""What sharing costs, and what it saves: many pickers beside one.

Virtual time: the lab's fleets behind 1, 4 and 8 pickers, by the delay of what they share. The
product's director and sharing; figures are exact for a seed. Real time: a store or the workers' hub
on this machine, all pickers in one process; ages say how busy the machine is, too.

    python -m bench sharing

Without a `redis-server` on the path the parts with a store are left out, and said.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laar.core.beliefs import PrefixBeliefs
from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable
from laar.core.request import Api, Request
from laar.health import Health, HealthSettings
from laar.lab.suite.case import Case, Pickers, run_case
from laar.lab.suite.table import SUITE
from laar.policies import build_policies
from laar.server.sharing.carrier import Carrier
from laar.server.sharing.hub import Hub, HubClient
from laar.server.sharing.sharer import Sharer
from laar.server.sharing.store import Store
from laar.server.tasks import Tasks
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing import SharingSettings
from laar.telemetry.problems import Problems

TARGET_SHARE = 0.03
TARGET_AGE_MS = 20.0
TARGET_BYTES = 1024
TARGET_CPU_SHARE = 0.15

CASES = ("art-x2", "agents-8k", "router-16")
"""Conversations of 18,000 tokens, agents behind one prompt, sessions with one long prompt."""
SEEDS = (1, 2, 3)
MINUTES_SHARE = 0.5
WAYS = {
    "one": None,
    "4, 1 ms": Pickers(4, 0.001),
    "4, 20 ms": Pickers(4, 0.02),
    "4, 100 ms": Pickers(4, 0.1),
    "4, 1 s": Pickers(4, 1.0),
    "8, 1 ms": Pickers(8, 0.001),
    "4, nothing": Pickers(4, None),
}

ENDPOINTS = 8
RATE = 1000.0  # decisions a second
SECONDS = 5.0
SESSIONS = 200
HELD_S = 0.05


def main() -> None:
    console = Console()
    staleness(console)
    asyncio.run(_real(console))


def staleness(console: Console) -> None:
    """The price of not knowing what the others have just done."""
    cases: dict[str, Case] = {case.name: case for case in SUITE}
    table = Table(title=f"pickers in virtual time, means of {len(SEEDS)} seeds, and beside one")
    for column in ("workload", "pickers", "hit rate", "TTFT p95 s", "beside one"):
        table.add_column(column)
    for name in CASES:
        base = 0.0
        for way, pickers in WAYS.items():
            runs = [
                run_case(cases[name], "laar", seed, share=MINUTES_SHARE, pickers=pickers)
                for seed in SEEDS
            ]
            hits = statistics.fmean(run["hit_rate"] for run in runs)
            p95_s = statistics.fmean(run["ttft_p95_s"] for run in runs)
            base = base or p95_s
            table.add_row(name, way, f"{hits:.3f}", f"{p95_s:.3f}", f"{p95_s / base - 1:+.1%}")
    console.print(table)


async def _real(console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="laar-bench-") as directory:
        alone = _decide_alone()
        console.print(f"a decision and its end alone: {alone * 1e6:.0f} us of CPU")
        await _over_hub(console, Path(directory), alone)
        server = shutil.which("redis-server") or shutil.which("valkey-server")
        if server is None:
            console.print("no redis-server and no valkey-server: nothing measured with a store")
            return
        socket = Path(directory) / "store"
        command = [server, "--port", "0", "--unixsocket", str(socket), "--save", ""]
        store = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, cwd=directory
        )
        try:
            await asyncio.to_thread(_until_there, socket)
            await _over_store(console, Path(server).name, socket, alone)
        finally:
            store.kill()
            await store.wait()


def _until_there(socket: Path) -> None:
    for _ in range(1000):
        if socket.exists():
            return
        time.sleep(0.01)


async def _over_hub(console: Console, directory: Path, alone_s: float) -> None:
    hub = Hub(directory / "hub", history_s=60.0, interval_s=20.0)
    await hub.start()
    members = [Member(n, HubClient(directory / "hub"), Share()) for n in range(2)]
    await _measure(console, "hub, 2 workers", members, alone_s)
    await hub.stop()


async def _over_store(console: Console, name: str, socket: Path, alone_s: float) -> None:
    share = Share(url=f"unix://{socket}")
    settings = part(SharingSettings, share)
    for count in (2, 4):
        members = [
            Member(n, Store(share, settings, origin=f"{count}-{n}/1", secret=None), share)
            for n in range(count)
        ]
        await _measure(console, f"{name}, {count} pickers", members, alone_s)


class Member:
    """One picker without ports."""

    def __init__(self, number: int, carrier: Carrier | None, share: Share) -> None:
        self.director = _director(number)
        self.ages_ms: list[float] = []
        self.tasks = Tasks(Problems())
        self.sharer: Sharer | None = None
        if carrier is None:
            return
        self.sharer = Sharer(
            self.director,
            share,
            carrier,
            origin=getattr(carrier, "_origin", f"hub-{number}/1".encode()).decode(),
            key=b"k" * 16,
            clock=time.monotonic,
            problems=Problems(),
        )
        self.sharer.endpoints_known.set()
        take = self.sharer.sharing.take

        def aged(data: bytes, now: float, *, age_s: float = 0.0) -> None:
            take(data, now, age_s=age_s)
            assert self.sharer is not None
            self.ages_ms.append(1e3 * self.sharer.sharing.age_s)

        self.sharer.sharing.take = aged  # type: ignore[method-assign]

    async def start(self) -> None:
        """Begins to share."""
        assert self.sharer is not None
        for name, run in self.sharer.tasks().items():
            self.tasks.spawn(name, run)
        await self.sharer.warmed()

    async def stop(self) -> None:
        """Leaves the others."""
        assert self.sharer is not None
        await self.sharer.stop()
        await self.tasks.cancel()


async def _measure(console: Console, name: str, members: list[Member], alone_s: float) -> None:
    for member in members:
        await member.start()
    began_cpu, began = time.process_time(), time.monotonic()
    talk = Talk(random.Random(1))
    decided = await _drive(members, talk, began)
    cpu_s = time.process_time() - began_cpu
    took_s = time.monotonic() - began
    await asyncio.sleep(0.2)
    ages = sorted(age for member in members for age in member.ages_ms)
    sent = sum(member.sharer.sent_bytes for member in members if member.sharer)
    idle_cpu, idle = time.process_time(), time.monotonic()
    await asyncio.sleep(1.0)
    idle_share = (time.process_time() - idle_cpu) / (time.monotonic() - idle)
    cost_s = (cpu_s - idle_share * took_s) / decided - alone_s
    fault = [m.sharer.sharing.unknown_prefixes for m in members if m.sharer]
    console.print(
        f"{name}: {decided / took_s:.0f} decisions/s; age of what others hear p50 "
        f"{ages[len(ages) // 2]:.1f} ms, p99 {ages[int(0.99 * len(ages))]:.1f} ms "
        f"(target {TARGET_AGE_MS:.0f}); {sent / decided:.0f} bytes a decision (target "
        f"{TARGET_BYTES}); CPU +{cost_s * 1e6:.0f} us a decision, of all {len(members)} together; "
        f"idle {100 * idle_share:.1f} % of a core for all; unknown prefixes {sum(fault)}"
    )
    for member in members:
        await member.stop()


class Talk:
    """Conversations whose turns come to any picker."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._texts = [self._more(2000) for _ in range(SESSIONS)]
        self._count = 0

    def _more(self, chars: int) -> str:
        return "".join(f"{self._rng.getrandbits(64):016x}" for _ in range(chars // 16))

    def next(self) -> Request:
        """The next turn of some conversation."""
        number = self._rng.randrange(SESSIONS)
        text = self._texts[number] + self._more(1200)
        self._texts[number] = text if len(text) < 40_000 else self._more(2000)
        self._count += 1
        return Request(
            id=str(self._count),
            api=Api.CHAT,
            model="m",
            spans=(text,),
            question=text[:200],
            chars=len(text),
            stream=True,
        )


async def _drive(members: list[Member], talk: Talk, began: float) -> int:
    """Decides at a steady rate; each request ends after a while."""
    flying: deque[tuple[float, Director, Decision]] = deque()
    decided, rng = 0, random.Random(2)
    while (now := time.monotonic()) - began < SECONDS:
        for _ in range(min(8, int((now - began) * RATE) - decided)):  # the others have their turn
            director = rng.choice(members).director
            flying.append((now + HELD_S, director, director.decide(talk.next(), now)))
            decided += 1
        while flying and flying[0][0] <= now:
            _, director, decision = flying.popleft()
            director.settle(decision, _END)
        await asyncio.sleep(0.001)
    while flying:
        _, director, decision = flying.popleft()
        director.settle(decision, _END)
    return decided


def _decide_alone() -> float:
    """CPU of a decision and its end without sharing, in seconds."""
    director, talk, count = _director(0), Talk(random.Random(1)), 2000
    requests = [talk.next() for _ in range(count)]
    began = time.process_time()
    for number, request in enumerate(requests):
        director.settle(director.decide(request, 1.0 + number / RATE), _END)
    making = time.process_time()
    for _ in range(count):
        talk.next()
    return (making - began + time.process_time() - making) / count


_END = Completion(status=200, cause="complete", latency_s=HELD_S, ttft_s=0.02)


def _director(seed: int) -> Director:
    table = EndpointTable()
    specs: list[Any] = [
        EndpointSpec(address=f"10.0.0.{n}:80", models=("m",)) for n in range(1, ENDPOINTS + 1)
    ]
    table.replace("bench", specs)
    rng = random.Random(seed)
    return Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=rng,
        prefixes=PrefixBeliefs(key=b"k" * 16, max_bytes=128 << 20),
        health=Health(HealthSettings(), rng=rng),
    )
