"""Run a simulated engine in real time.

The engine is pure: `step(now)` returns the duration of an iteration and the state at its end. The
driver keeps a virtual timeline, ``virtual = (monotonic - start) / time_scale``. It sleeps until the
end of an iteration and then reports the progress to the requests. Iterations of a busy engine
follow each other without a gap on that timeline, so timer errors do not add up; after a late
wake-up all iterations that should be over are run, and requests get their tokens as one batch. A
single task serves all requests, and it sleeps while there is nothing to do.

Metrics are updated after iterations, as in vLLM, so a burst shows up to one iteration late. Token
times below `TICK_S` are inexact, for the sake of small machines that run several endpoints.
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
"""Shortest sleep in real seconds; shorter ones would mean one wake-up per token in a fast run."""

MAX_BURST = 64
"""Maximum number of iterations to run without yielding to other tasks when behind."""

MAX_LAG_S = 0.25
"""Real seconds by which the timeline may fall behind; any more, as after a stall, is dropped."""

IDLE_LOAD = Load(
    running=0,
    waiting=0,
    kv_usage=0.0,
    preemptions=0,
    prefix_queries_tokens=0,
    prefix_hits_tokens=0,
)


class Lost(StrEnum):
    """Why a request gets no more tokens."""

    SHUTDOWN = "shutdown"
    CRASH = "crash"
    CLIENT_LEFT = "client left"


class Flight:
    """A job in the engine: its output so far, and a way to wait for more.

    Times are real (monotonic) seconds on the engine's timeline, unaffected by late wake-ups:
    `submitted_s` is when it reached the engine, `started_s` and `first_s` are when the iteration of
    its first token began and ended, and `updated_s` is when the iteration of its newest token
    ended.
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
        """Wait until there are more than `seen` tokens, or no more will come."""
        while self.tokens <= seen and not self.finished and self.lost is None:
            self._news.clear()
            await self._news.wait()

    def gain(self, progress: Progress, *, started_s: float, ended_s: float) -> None:
        """Record the progress of an iteration that ran from `started_s` to `ended_s`."""
        self.updated_s = max(self.submitted_s, ended_s)
        if self.tokens == 0:
            self.started_s = max(self.submitted_s, started_s)
            self.first_s = self.updated_s
        self.tokens += progress.tokens
        self.cached_tokens = progress.cached_tokens
        self.finished = progress.finished
        self._news.set()

    def lose(self, why: Lost) -> None:
        """End the flight without further output."""
        self.lost = self.lost or why
        self._news.set()


class BlockObserver(Protocol):
    """Observes the prefix cache."""

    def note(self, events: Sequence[KvEvent]) -> None:
        """Record the changes that the iteration about to begin will make."""
        ...

    def publish(self) -> None:
        """Publish the recorded changes at the end of the iteration."""
        ...

    def left(self, job_id: str) -> None:
        """Handle a job that has left the engine or was not admitted."""
        ...


class EngineDriver:
    """Drives an engine made by `build`.

    Args:
        build: makes a fresh engine; called again after a simulated crash.
        time_scale: real seconds per second of the engine's time; 0.05 makes it twenty times faster.
        blocks: observer of each iteration's changes to the prefix cache.
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
        """Return the engine's time in seconds."""
        return (time.monotonic() - self._born_s) / self._scale

    def rescale(self, time_scale: float) -> None:
        """Change the pace of time from now on; the current time stays the same."""
        now = self.now()
        self._scale = time_scale
        self._born_s = time.monotonic() - now * time_scale

    async def emptied(self) -> None:
        """Wait until no job is in progress."""
        await self._empty.wait()

    def submit(self, job: Job) -> Flight:
        """Submit a job to the engine; the returned flight shows its progress.

        Raises:
            RequestError: the engine refused the job.
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
        """End every flight without an answer."""
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            self.engine.abort(flight.job.id)
            self._left(flight.job.id)
            flight.lose(why)
        self._wake.set()

    def restart(self) -> None:
        """Start a fresh engine; everything in flight, the cache and the counters are lost."""
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
            if flight is None:  # aborted during the iteration
                continue
            flight.gain(progress, started_s=started_s, ended_s=ended_s)
            if progress.finished:
                del self._flights[progress.job_id]
                self._left(progress.job_id)
        self.reported = self.engine.load()
        if self._blocks is not None:
            self._blocks.publish()
