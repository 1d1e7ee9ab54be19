"""Closed-loop and open-loop load on one Envoy.

Closed-loop clients (`Load`) send less to a hanging fleet, which bounds the losses. With an open
loop (`OpenLoad`) the cost of a fault grows with the rate.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from bench.chaos.asking import End, Ended, Names, Question, ask

__all__ = ["Load", "OpenLoad", "client_session", "percentile"]


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of the values does not exceed; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@asynccontextmanager
async def client_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session without a pool limit or total timeout; the load has its own."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


class Load:
    """A closed loop: each client sends a request, waits for its end, pauses, and repeats.

    Args:
        url: returns Envoy's current URL, which may change.
        next_question: returns the question with a number; None ends the load.
        names: names to judge answers by.
        at_once: number of clients.
        limit_s: client timeout in seconds.
        think_s: longest pause of a client before its next question.
        seed: seed of the pauses.
        keep: receives each completed request.
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
        """Stop sending; requests in flight may finish."""
        self._stopped = True

    async def run(self) -> None:
        """Run the clients until each has received its last answer."""
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
