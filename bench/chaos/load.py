"""Open-loop load on one Envoy: a hanging fleet gets no fewer requests than one that answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from bench.chaos.asking import End, Ended, Names, Question, ask

__all__ = ["OpenLoad", "client_session"]


@asynccontextmanager
async def client_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session without a pool limit or total timeout; the load has its own."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


class OpenLoad:
    """An open loop: requests are due at random moments, whether or not earlier ones have ended.

    A request's time counts from the moment it was due. If `at_most` are in flight then, it is lost
    without being sent.

    Args:
        url: returns Envoy's current URL, which may change.
        next_question: returns the question with a number; None ends the load.
        names: names to judge answers by.
        rate_per_s: mean requests a second.
        seed: seed of the send times.
        limit_s: client timeout in seconds.
        keep: receives each completed request.
    """

    def __init__(
        self,
        *,
        url: Callable[[], str],
        next_question: Callable[[int], Question | None],
        names: Names,
        rate_per_s: float,
        seed: int | str,
        limit_s: float,
        keep: Callable[[Ended], None],
    ) -> None:
        self._url = url
        self._next = next_question
        self._names = names
        self._rate_per_s = rate_per_s
        self._rng = random.Random(seed)
        self._limit_s = limit_s
        self._keep = keep
        self.at_most = int(2 * rate_per_s * limit_s) + 100
        self.in_flight = 0

    async def run(self) -> None:
        """Send the requests; return when all have ended."""
        due_s, number = time.monotonic(), 0
        async with client_session() as http, asyncio.TaskGroup() as group:
            while (question := self._next(number)) is not None:
                number += 1
                due_s += self._rng.expovariate(self._rate_per_s)
                await asyncio.sleep(due_s - time.monotonic())
                if self.in_flight >= self.at_most:
                    now_s = time.monotonic()
                    lost = Ended(question=question, began_s=due_s, ended_s=now_s, end=End.UNSENT)
                    self._keep(lost)
                    continue
                self.in_flight += 1
                group.create_task(self._one(http, question, due_s))

    async def _one(self, http: aiohttp.ClientSession, question: Question, due_s: float) -> None:
        ended = await ask(http, self._url(), question, self._names, limit_s=self._limit_s)
        ended.began_s = due_s
        self.in_flight -= 1
        self._keep(ended)
