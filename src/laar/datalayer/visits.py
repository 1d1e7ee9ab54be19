"""Visit each endpoint at a jittered interval, for scrapes, probes and other polls.

Intervals are jittered by a tenth so that visits to many endpoints spread out and several pickers
don't synchronize. Visits due at nearly the same time start together: a lone visit finds its code
evicted from the CPU caches and costs twice as much.

Two caps keep a large fleet cheap: visits in flight, and visits started per second. Above the second
cap all intervals stretch: with 5,000 endpoints, readings get older, as their timestamps show, but
decisions keep the CPU time that they need. If a visit is still in flight when the next one is due,
the next is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import aiohttp

from laar.datalayer.fetching import visiting_session
from laar.datalayer.interface import GONE, Clock, EngineSink, Targets
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.latest import Latest

_LOG = logging.getLogger(__name__)

MAX_UNDER_WAY = 400
"""Maximum number of visits in flight: as many as start, at the rate below, within the timeout of a
scrape. So endpoints that hang don't delay the visits to others."""
MAX_STARTS_PER_S = 200.0
"""Maximum rate: twice what 100 endpoints need, 7 % of a core."""
MAX_KEPT = 20_000
"""Maximum number of addresses that visits keep something about: twice the largest fleet."""
LOOK_S = 0.25
"""Maximum seconds until the first visit to a new endpoint."""
LEAST_WAIT_S = 0.01
"""Visits due within this time start together: a wake-up costs about as much as a visit."""
_TOGETHER_SHARE = 0.05
"""Visits start at multiples of this share of their interval, so that several coincide."""
_TOGETHER = 8
"""Maximum number of visits that start together; they delay requests by about a millisecond."""
_CANCEL_AGAIN_S = 3.0
"""Seconds until a task is cancelled again; longer than any task's clean-up."""
_TIMER_S = 1e-3
"""Seconds by which the event loop's timers may fire early."""


def until_look_s(every_s: float = LOOK_S) -> float:
    """Return the seconds until the next multiple of `every_s`, at which all pollers wake up.

    Most of the cost of a poll is waking up, and one wake-up serves all pollers.
    """
    return every_s - asyncio.get_running_loop().time() % every_s + _TIMER_S


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they end; ignore their errors. This may itself be cancelled.

    A task that continues is cancelled again: `asyncio.wait_for` in Python 3.11, used by libraries,
    drops a cancellation that arrives just as its wait ends.
    """
    tasks = list(tasks)
    going: Iterable[asyncio.Task[Any]] = tasks
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieves the errors


async def occurs(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event, at most `within_s` (None: no limit); return whether it occurred."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()


class Visits:
    """A collector that visits each target repeatedly; subclasses define a visit.

    Args:
        targets: returns the endpoints to visit now; called at each poll.
        sink: receives what visits find, and problems.
        interval_s: seconds between visits to an endpoint, fixed or a function called before each
            visit; None means the subclass's interval.
    """

    kind: ClassVar[Fault]
    """What it is if a visit fails."""
    usual_s: ClassVar[float]
    """Default seconds between visits to an endpoint."""
    headers: ClassVar[Mapping[str, str]]
    """Headers of the requests for pages."""
    most_per_s: ClassVar[float] = MAX_STARTS_PER_S
    """Maximum number of visits per second over all endpoints, not counting first visits."""
    remembers: ClassVar[bool] = False
    """Whether what is kept about a target outlives it, since it may return."""
    phase: ClassVar[float] = 0.0
    """Offset of the start times, as a share of the time between them."""
    session: aiohttp.ClientSession
    """The visits' connections, while `run` is running."""

    def __init__(
        self,
        targets: Targets,
        sink: EngineSink,
        *,
        clock: Clock,
        rng: random.Random,
        interval_s: float | Callable[[], float] | None = None,
    ) -> None:
        self.targets = targets
        self._sink = sink
        self._interval_s = self.usual_s if interval_s is None else interval_s
        self._clock = clock
        self._rng = rng
        self._seen: tuple[EndpointSpec, ...] = ()
        self._known: dict[str, EndpointSpec] = {}
        self._due: list[tuple[float, str]] = []
        self._due_at: dict[str, float] = {}  # time of the valid heap entry of each address
        self._begun_at: dict[str, float] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._logged: set[type[BaseException]] = set()
        self.kept: dict[str, Any] = Latest(MAX_KEPT)
        """What a subclass keeps by address; dropped once a target is gone."""

    async def visit(self, spec: EndpointSpec) -> None:
        """Visit one endpoint, with a timeout; an error not caught here fails only this visit."""
        raise NotImplementedError

    def interval_s(self, _spec: EndpointSpec) -> float:
        """Return the seconds until the next visit to an endpoint."""
        return self._interval_s() if callable(self._interval_s) else self._interval_s

    async def run(self) -> None:
        """Visit until cancelled; visits in flight are cancelled too."""
        async with visiting_session(self.headers) as self.session:
            try:
                while True:
                    now = self._clock()
                    self._follow(now)
                    self._start(now)
                    wait_s = LOOK_S - now % LOOK_S
                    if self._due:
                        wait_s = min(wait_s, self._due[0][0] - now)
                    # A due visit that can't start yet must not cause a busy loop.
                    await asyncio.sleep(max(wait_s, LEAST_WAIT_S) + _TIMER_S)
            finally:
                await cancel(self._under_way.values())

    def soon(self, address: str, least_s: float) -> None:
        """Visit an endpoint soon, but not within `least_s` of the start of its last visit."""
        at = max(self._clock(), self._begun_at.get(address, -math.inf) + least_s)
        if at < self._due_at.get(address, -math.inf):
            self._plan(address, at)

    def _follow(self, now: float) -> None:
        targets = tuple(self.targets())
        if targets is self._seen or targets == self._seen:
            return
        specs = {spec.address: spec for spec in targets}
        for address in self._known.keys() - specs.keys():
            del self._due_at[address]
            self._begun_at.pop(address, None)
            self._sink.problem(self.kind, GONE, address)
            if not self.remembers:
                self.kept.pop(address, None)
            if task := self._under_way.get(address):
                task.cancel()
        new = [address for address in specs if address not in self._known]
        for index, address in enumerate(new):
            self._plan(address, now + index / MAX_STARTS_PER_S)
        self._known, self._seen = specs, targets

    def _plan(self, address: str, at: float) -> None:
        self._due_at[address] = at
        heapq.heappush(self._due, (at, address))

    def _start(self, now: float) -> None:
        least_s = len(self._known) / self.most_per_s
        for _ in range(min(_TOGETHER, MAX_UNDER_WAY - len(self._under_way))):
            if not self._due or self._due[0][0] > now:
                break
            at, address = heapq.heappop(self._due)
            if self._due_at.get(address) != at:
                continue
            spec = self._known[address]
            interval_s = max(self.interval_s(spec), least_s)
            grid_s = _TOGETHER_SHARE * interval_s
            step = (now + interval_s * self._rng.uniform(0.9, 1.1)) / grid_s - self.phase
            self._plan(address, (round(step) + self.phase) * grid_s)
            if address not in self._under_way:
                self._begun_at[address] = now
                task = asyncio.create_task(self.visit(spec), name=f"visit {address}")
                self._under_way[address] = task
                task.add_done_callback(functools.partial(self._ended, address))

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        del self._under_way[address]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if type(error) not in self._logged:  # one traceback per kind is enough
            self._logged.add(type(error))
            _LOG.error("%s %s failed", self.kind, address, exc_info=error)
        self._sink.problem(self.kind, f"failed with {type(error).__name__}; see the log", address)


async def aside(is_long: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; use a thread if what it reads is long, since requests would wait."""
    return await asyncio.to_thread(function, *arguments) if is_long else function(*arguments)
