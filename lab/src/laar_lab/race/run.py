"""Run a race: in each repetition every router has a turn with the same requests.

The first router rotates from one repetition to the next. Each turn starts a fresh router on idle
engines with empty caches, so that nothing a router learned or left behind helps the next.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import aiohttp
import orjson

from laar_lab.race.clients import Asking, Clients, Row
from laar_lab.race.engines import Engines, emptied, look_at, simulated
from laar_lab.race.result import Turn, numbers_of
from laar_lab.race.routers import Router
from laar_lab.race.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Simulated engines to start for each turn.

    Args:
        profile: engine profile to imitate.
        count: number of engines.
        time_scale: real seconds per simulated second.
        fault: fault of the first engine; empty for no fault.
    """

    profile: str
    count: int
    time_scale: float
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Settings of a race.

    Args:
        routers: the routers; the others are compared with the first.
        engines: URLs of a user's engines, engines to simulate in each turn, or running engines.
        model: model to request from a user's engines; None for the first that all of them serve.
        headers: headers of each request to the engines, such as their API key.
        traffic: function that makes the traffic, given a limit on prompt plus answer tokens.
        seconds: how long requests are sent in each turn, in the fleet's time.
        warm_up_s: requests due before this are ignored.
        repeat: number of repetitions.
        seed: seed of the first repetition's traffic.
        deadline_s: real seconds after which an answer has failed.
        in_flight: limit on concurrent requests.
        most_tokens: limit on prompt plus answer; None for the engines' context length.
        meanwhile: what happens to the engines during each turn; cancelled at its end.
        admin_port: port of laar's live page; 0 for a free one.
    """

    routers: Sequence[Router]
    engines: Sequence[str] | Simulated | Engines
    model: str | None
    headers: Mapping[str, str]
    traffic: Callable[[int], Traffic]
    seconds: float
    warm_up_s: float
    repeat: int
    seed: int
    deadline_s: float
    in_flight: int
    most_tokens: int | None = None
    meanwhile: Callable[[Engines], Awaitable[None]] | None = None
    admin_port: int = 0

    @property
    def time_scale(self) -> float:
        """Real seconds per second of the fleet."""
        return 1.0 if isinstance(self.engines, Sequence) else self.engines.time_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A finished turn.

    Args:
        turn: its numbers.
        about: description of the traffic for the reader.
        kept: engines whose caches could not be emptied.
        left_out: number of requests skipped because they were too long.
    """

    turn: Turn
    about: str
    kept: Sequence[str]
    left_out: int


async def run(race: Race, rows: IO[bytes]) -> AsyncIterator[Ended]:
    """Run all turns; write each request to `rows` as a line of JSON when its turn ends.

    Raises:
        LaarError: a router or an engine did not start, or an engine is unusable.
    """
    for repetition in range(race.repeat):
        first = repetition % len(race.routers)
        for router in (*race.routers[first:], *race.routers[:first]):
            with tempfile.TemporaryDirectory(prefix="laar-race-") as directory:
                ended, seen = await _turn(race, router, repetition, Path(directory))
            for row in seen:
                line = {"router": router.name, "repetition": repetition, **asdict(row)}
                rows.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            rows.flush()
            yield ended


async def _turn(
    race: Race, router: Router, repetition: int, directory: Path
) -> tuple[Ended, list[Row]]:
    async with _fleet(race, directory) as engines:
        kept = [] if engines.simulated else await emptied(engines)
        most = min(engines.context_tokens - 64, race.most_tokens or engines.context_tokens)
        traffic = race.traffic(most)
        asking = Asking(
            engines=engines,
            mark=f"{repetition:03d} {race.routers.index(router):03d}",
            time_scale=race.time_scale,
            deadline_s=race.deadline_s,
            in_flight=race.in_flight,
            most_tokens=most,
            names_programs=router.wants_programs,
        )
        async with (
            router.running(directory, engines, race.admin_port) as running,
            aiohttp.ClientSession(
                running.url,
                connector=aiohttp.TCPConnector(limit=0),
                headers={"content-type": "application/json", **race.headers},
                timeout=aiohttp.ClientTimeout(total=None),
            ) as session,
        ):
            clients = Clients(session, asking)
            before_s = running.cpu_s()
            async with _beside(race.meanwhile, engines):
                await _send(race, traffic, clients, race.seed + repetition)
            spent_s = running.cpu_s() - before_s if running.pids else None
    numbers = numbers_of(clients.rows, from_s=race.warm_up_s, until_s=race.seconds, cpu_s=spent_s)
    ended = Ended(
        turn=Turn(router=router.name, repetition=repetition, numbers=numbers),
        about=traffic.about,
        kept=kept,
        left_out=clients.left_out,
    )
    return ended, clients.rows


@asynccontextmanager
async def _beside(
    happens: Callable[[Engines], Awaitable[None]] | None, engines: Engines
) -> AsyncIterator[None]:
    """Run `happens` beside the block; cancel it at the end."""
    if happens is None:
        yield
        return
    task = asyncio.ensure_future(happens(engines))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _send(race: Race, traffic: Traffic, clients: Clients, seed: int) -> None:
    if traffic.arrivals is not None:
        await clients.send_open(traffic.arrivals(seed))
        return
    assert traffic.sessions is not None
    async with asyncio.TaskGroup() as group:
        for client in range(traffic.clients):
            group.create_task(clients.hold(traffic.sessions(seed, client), race.seconds))


@asynccontextmanager
async def _fleet(race: Race, directory: Path) -> AsyncIterator[Engines]:
    if isinstance(race.engines, Engines):
        yield race.engines
    elif isinstance(race.engines, Simulated):
        given = race.engines
        async with simulated(
            directory, given.profile, given.count, given.time_scale, given.fault
        ) as engines:
            yield engines
    else:
        yield await look_at(race.engines, race.model, race.headers)
