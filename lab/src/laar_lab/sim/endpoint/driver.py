"""Runs a simulated engine in real time.

The engine is pure: `step(now)` gives the time of an iteration and the state at its end. The
driver keeps one virtual timeline for it, ``virtual = (monotonic - start) / time_scale``, sleeps
until an iteration's end and then hands its progress to the requests. Iterations of a busy engine
follow each other without a gap on that timeline, so timer error does not add up; a wake-up that
comes late runs all iterations that are over by then, and a request sees their tokens as one batch.
There is one task for all requests, and it sleeps while there is nothing to do.

Readings are taken after iterations, as vLLM does: a burst shows up to one iteration late. Not
promised: exact token times below `TICK_S`; several endpoints share a small machine in the demo.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from laar.errors import RequestError
from laar_lab.sim.engine.interface import Engine, Job, KvEvent, Load, Progress, Step

TICK_S = 0.002
"""Shortest sleep, real seconds; shorter ones cost a wake-up for each token of a fast run."""

MAX_BURST = 64
"""Iterations run without giving other tasks a turn, when behind."""

MAX_LAG_S = 0.25
"""Real time the timeline may be behind. The excess of a longer stall of the machine is dropped."""

IDLE_LOAD = Load(
    running=0,
    waiting=0,
    kv_usage=0.0,
    preemptions=0,
    prefix_queries_tokens=0,
    prefix_hits_tokens=0,
)


class Lost(StrEnum):
    """The reason why a request will get no more tokens."""

    SHUTDOWN = "shutdown"
    CRASH = "crash"
    CLIENT_LEFT = "client left"


class Flight:
    """One job on its way: its output so far, and a wait for more.

    Times are real (monotonic) seconds, exact on the engine's timeline and not when a task woke:
    `submitted_s` when it reached the engine, `started_s` and `first_s` when the iteration of its
    first token began and ended, `updated_s` when that of its newest token ended.
    """

    __slots__ = (
        "_news",
        "cached_tokens",
        "finished",
        "first_s",
        "job",
        "lost",
        "started_s",
        "submitted_s",
        "tokens",
        "updated_s",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokens = 0
        self.cached_tokens = 0
        self.finished = False
        self.lost: Lost | None = None
        self.submitted_s = time.monotonic()
        self.started_s = self.first_s = self.updated_s = self.submitted_s
        self._news = asyncio.Event()

    async def more(self, seen: int) -> None:
        """Return when there are more than `seen` tokens, or nothing more to wait for."""
        while self.tokens <= seen and not self.finished and self.lost is None:
            self._news.clear()
            await self._news.wait()

    def gain(self, progress: Progress, *, started_s: float, ended_s: float) -> None:
        """Take note of an iteration that ran over this time."""
        self.updated_s = max(self.submitted_s, ended_s)
        if self.tokens == 0:
            self.started_s = max(self.submitted_s, started_s)
            self.first_s = self.updated_s
        self.tokens += progress.tokens
        self.cached_tokens = progress.cached_tokens
        self.finished = progress.finished
        self._news.set()

    def lose(self, why: Lost) -> None:
        """End the flight: nothing more will come."""
        self.lost = self.lost or why
        self._news.set()


class BlockObserver(Protocol):
    """Follows the prefix cache."""

    def note(self, events: Sequence[KvEvent]) -> None:
        """Take the changes that an iteration that begins now will have made by its end."""
        ...

    def publish(self) -> None:
        """The iteration has ended."""
        ...

    def left(self, job_id: str) -> None:
        """A job has left the engine, or did not get in."""
        ...


class EngineDriver:
    """Drives the engine that `build` makes.

    Args:
        build: makes a fresh engine; called again after a simulated crash.
        time_scale: real seconds for each second of the engine's time; 0.05 is twenty times faster
            than the hardware that the engine models.
        blocks: gets the changes that each iteration makes to the prefix cache.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        time_scale: float,
        blocks: BlockObserver | None = None,
    ) -> None:
        self.engine = build()
        self.reported = IDLE_LOAD
        self._build = build
        self._scale = time_scale
        self._blocks = blocks
        self._born_s = time.monotonic()
        self._flights: dict[str, Flight] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def now(self) -> float:
        """The engine's time, seconds."""
        return (time.monotonic() - self._born_s) / self._scale

    def rescale(self, time_scale: float) -> None:
        """Change the pace of time from now on; time already passed is unaffected."""
        now = self.now()
        self._scale = time_scale
        self._born_s = time.monotonic() - now * time_scale

    async def emptied(self) -> None:
        """Return when no job is under way."""
        await self._empty.wait()

    def submit(self, job: Job) -> Flight:
        """Give the engine a job; the flight shows its outcome.

        Raises:
            RequestError: the engine refuses it.
        """
        try:
            self.engine.submit(job)
        except RequestError:
            self._left(job.id)
            raise
        flight = self._flights[job.id] = Flight(job)
        self._empty.clear()
        self._wake.set()
        return flight

    def abort(self, job_id: str) -> None:
        """Drop a job if it is still in the engine."""
        if self._flights.pop(job_id, None) is not None:
            self.engine.abort(job_id)
            self._left(job_id)
            self._wake.set()

    def lose_all(self, why: Lost) -> None:
        """End every flight without its answer."""
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            self.engine.abort(flight.job.id)
            self._left(flight.job.id)
            flight.lose(why)
        self._wake.set()

    def restart(self) -> None:
        """A fresh engine: everything in flight is lost, and so are the cache and the counters."""
        self.lose_all(Lost.CRASH)
        self.engine = self._build()
        self.reported = IDLE_LOAD

    async def run(self) -> None:
        """Step the engine until cancelled."""
        ends = self.now()
        burst = 0
        while True:
            self._wake.clear()
            engine = self.engine
            step = engine.step(ends)
            if step is None:
                self.reported = engine.load()
                await self._wake.wait()
                ends, burst = self.now(), 0
                continue
            if self._blocks is not None:
                self._blocks.note(step.events)
            starts, ends = ends, ends + step.duration_s
            wait_s = (ends - self.now()) * self._scale
            burst += 1
            if wait_s > 0 or burst >= MAX_BURST:
                await asyncio.sleep(max(wait_s, TICK_S) if wait_s > 0 else 0)
                burst = 0
            if engine is self.engine:
                self._apply(step, starts, ends)
            ends = max(ends, self.now() - MAX_LAG_S / self._scale)

    def _left(self, job_id: str) -> None:
        if not self._flights:
            self._empty.set()
        if self._blocks is not None:
            self._blocks.left(job_id)

    def _apply(self, step: Step, starts: float, ends: float) -> None:
        started_s = self._born_s + starts * self._scale
        ended_s = self._born_s + ends * self._scale
        for progress in step.progress:
            flight = self._flights.get(progress.job_id)
            if flight is None:  # aborted while the iteration ran
                continue
            flight.gain(progress, started_s=started_s, ended_s=ended_s)
            if progress.finished:
                del self._flights[progress.job_id]
                self._left(progress.job_id)
        self.reported = self.engine.load()
        if self._blocks is not None:
            self._blocks.publish()
