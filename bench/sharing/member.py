"""Run one picker without ports: ``python -m bench.sharing.member SPEC OUT``.

It decides its share of a steady stream of conversations, whose turns are spread over the pickers,
and writes its measurements. All pickers of a run generate the same stream.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.health import Health, HealthSettings
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.server.sharing.sharer import Sharer
from laar.server.sharing.store import Store
from laar.server.tasks import Tasks
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing.settings import SharingSettings
from laar.sharing.sharing import Sharing
from laar.telemetry.problems import Problems

__all__ = ["Driven", "Spec"]

ENDPOINTS = 8
SESSIONS = 200
HELD_S = 0.05
MEET_S = 60.0
_FIRST_BYTES, _MORE_BYTES, _MOST_CHARS = 1000, 600, 40_000
_END = Completion(status=200, cause="complete", latency_s=HELD_S, ttft_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The parameters of one picker.

    Args:
        path: path of the store's socket; empty for no sharing.
        number: number of the picker.
        count: number of pickers.
        rate: decisions a second of all pickers together.
        seconds: duration of the run.
    """

    path: str
    number: int
    count: int
    rate: float
    seconds: float


@dataclass(slots=True, kw_only=True)
class Driven:
    """The measurements of one picker.

    `ages_ms` has the age of each received batch when it was applied, `waits_ms` the time that the
    oldest decision in each sent batch had waited.
    """

    decided: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    idle_share: float = 0.0
    sent_bytes: int = 0
    ages_ms: list[float]
    waits_ms: list[float]


class Member:
    """A picker under measurement."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.driven = Driven(ages_ms=[], waits_ms=[])
        self.director = _director(spec.number)
        self.sharer: Sharer | None = None
        self._tasks = Tasks(Problems())
        self._oldest: float | None = None
        if spec.path:
            self.sharer = self._sharer()

    def _sharer(self) -> Sharer:
        spec = self.spec
        origin = f"{spec.number}/{os.getpid()}"
        share = Share(url=f"unix://{spec.path}")
        settings = part(SharingSettings, share)
        sharing = Sharing(
            self.director, settings, origin=origin, key=b"k" * 16, wall_clock=time.time
        )
        store = Store(share, settings, origin=origin, secret=None)
        sharer = Sharer(sharing, store, clock=time.monotonic, problems=Problems())
        sharer.endpoints_known.set()
        take, batches = sharer.sharing.take, sharer.sharing.batches

        def aged(data: bytes, now: float, *, age_s: float = 0.0) -> None:
            take(data, now, age_s=age_s)
            self.driven.ages_ms.append(1e3 * sharer.sharing.age_s)

        def waited(now: float) -> list[bytes]:
            if self._oldest is not None:
                self.driven.waits_ms.append(1e3 * (now - self._oldest))
                self._oldest = None
            return batches(now)

        sharer.sharing.take = aged  # type: ignore[method-assign]
        sharer.sharing.batches = waited  # type: ignore[method-assign]
        return sharer

    async def run(self) -> Driven:
        """Wait for the other pickers, stay idle for a second, and make the decisions."""
        driven, sharer = self.driven, self.sharer
        if sharer is not None:
            for name, run in sharer.tasks().items():
                self._tasks.spawn(name, run)
            await sharer.warmed()
            async with asyncio.timeout(MEET_S):
                while len(sharer.sharing.peers) < self.spec.count - 1:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.sleep(1.0)
        driven.idle_share = (time.process_time() - cpu) / (time.monotonic() - began)
        driven.ages_ms.clear()
        driven.waits_ms.clear()
        sent = sharer.bytes["sent"] if sharer else 0
        cpu, began = time.process_time(), time.monotonic()
        await self._drive(began)
        driven.cpu_s, driven.took_s = time.process_time() - cpu, time.monotonic() - began
        await asyncio.sleep(0.2)
        if sharer is not None:
            driven.sent_bytes = sharer.bytes["sent"] - sent
            await sharer.stop()
        await self._tasks.cancel()
        return driven

    async def _drive(self, began: float) -> None:
        """Decide at a steady rate; each request ends after `HELD_S`."""
        spec, director = self.spec, self.director
        flying: deque[tuple[float, Decision]] = deque()
        talk, number = _Talk(), 0
        while (now := time.monotonic()) - began < spec.seconds:
            due = int((now - began) * spec.rate)
            for _ in range(min(8 * spec.count, due - number)):  # then let sharing run
                request, mine = talk.next(), number % spec.count == spec.number
                number += 1
                if mine:
                    now = time.monotonic()
                    flying.append((now + HELD_S, director.decide(request, now)))
                    self.driven.decided += 1
                    if self._oldest is None:
                        self._oldest = now
            while flying and flying[0][0] <= now:
                director.settle(flying.popleft()[1], _END)
            await asyncio.sleep(0.001)
        while flying:
            director.settle(flying.popleft()[1], _END)


class _Talk:
    """A generator of conversations, the same for every picker of a run."""

    def __init__(self) -> None:
        self._rng = random.Random(1)
        self._texts = [""] * SESSIONS
        self._count = 0

    def next(self) -> Request:
        """Return the next turn of a random conversation."""
        rng = self._rng
        at = rng.randrange(SESSIONS)
        text = self._texts[at]
        if not text or len(text) > _MOST_CHARS:
            text = rng.randbytes(_FIRST_BYTES).hex()
        else:
            text += rng.randbytes(_MORE_BYTES).hex()
        self._texts[at] = text
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


def main() -> None:
    spec = Spec(**orjson.loads(sys.argv[1]))
    driven = uvloop.run(Member(spec).run())
    Path(sys.argv[2]).write_bytes(orjson.dumps(asdict(driven)))


if __name__ == "__main__":
    main()
