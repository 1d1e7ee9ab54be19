"""A closed loop of clients: each asks, waits for the end, thinks, and asks again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from bench.chaos.asking import Ended, Names, Question, ask

__all__ = ["Load", "client_session", "percentile"]


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@asynccontextmanager
async def client_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose time-outs and pool are the load's own business."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


class Load:
    """Clients of one Envoy.

    Args:
        url: returns Envoy's present URL, which may change.
        next_question: makes a question of its number; None ends the load.
        names: to judge answers by.
        at_once: number of clients.
        limit_s: seconds of a client's patience.
        think_s: longest pause of a client between an end and the next question.
        seed: seed of the pauses.
        keep: takes each request that has ended.
    """

    def __init__(
        self,
        *,
        url: Callable[[], str],
        next_question: Callable[[int], Question | None],
        names: Names,
        at_once: int,
        limit_s: float,
        think_s: float = 0.0,
        seed: int = 0,
        keep: Callable[[Ended], None],
    ) -> None:
        self._url = url
        self._next = next_question
        self._names = names
        self._at_once = at_once
        self._limit_s = limit_s
        self._think_s = think_s
        self._rng = random.Random(seed)
        self._keep = keep
        self._number = 0
        self._stopped = False
        self.began_s = 0.0

    def stop(self) -> None:
        """No further questions; those under way end first."""
        self._stopped = True

    async def run(self) -> None:
        """Returns when every client has had its last answer."""
        self.began_s = time.monotonic()
        async with client_session() as http, asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._client(http))

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while not self._stopped:
            question = self._next(self._number)
            if question is None:
                return
            self._number += 1
            ended = await ask(http, self._url(), question, self._names, limit_s=self._limit_s)
            self._keep(ended)
            if self._think_s:
                await asyncio.sleep(self._rng.uniform(0, self._think_s))
