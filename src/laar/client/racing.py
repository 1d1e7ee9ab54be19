"""The driver of `hedged_attempts`: one request or two in flight, the loser cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from laar.client.hedging import Also, Answered, Event, Head, HedgedSteps
from laar.client.loop import OnHead, Outcome, Reply, Send, Wait

Post = Callable[[Send, OnHead], Awaitable[Reply]]


async def race(steps: HedgedSteps, post: Post) -> Outcome:
    """Runs the loop; no request is left in flight when it returns or is cancelled."""
    pair = _Pair(post)
    event: Event | None = None
    try:
        while True:
            try:
                step = steps.send(event)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            event = None
            if isinstance(step, Wait):
                await asyncio.sleep(step.duration_s)
                continue
            if isinstance(step, Send):
                pair.first(step)
            elif isinstance(step, Also):
                pair.second(step.send)
            event = await pair.next_event()
    finally:
        await pair.cancel()


class _Pair:
    """A request, and perhaps one beside it. Each pair begins when the one before it has ended."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._clock = asyncio.get_running_loop().time
        self._tasks: dict[asyncio.Task[Reply], bool] = {}
        self._head: asyncio.Future[Mapping[str, str]] | None = None
        self._began_s = self._second_s = self._ran_s = 0.0

    def first(self, send: Send) -> None:
        head = self._head = asyncio.get_running_loop().create_future()

        def on_head(headers: Mapping[str, str]) -> None:
            if not head.done():
                head.set_result(headers)

        self._began_s, self._second_s, self._ran_s = self._clock(), 0.0, 0.0
        self._start(send, on_head, hedged=False)

    def second(self, send: Send) -> None:
        self._second_s = self._clock()
        self._start(send, lambda _headers: None, hedged=True)

    def _start(self, send: Send, on_head: OnHead, *, hedged: bool) -> None:
        async def posted() -> Reply:
            return await self._post(send, on_head)

        self._tasks[asyncio.create_task(posted())] = hedged

    async def next_event(self) -> Event:
        """The head of the first answer, once; then whole answers as they come."""
        waited: set[asyncio.Future[object]] = {*self._tasks}  # type: ignore[arg-type]
        if self._head is not None:
            waited.add(self._head)  # type: ignore[arg-type]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        at_s = self._clock() - self._began_s
        for task, hedged in self._tasks.items():
            if task.done():
                del self._tasks[task]
                if not hedged:
                    self._head = None
                if self._second_s and (hedged or not self._ran_s):
                    self._ran_s = self._clock() - self._second_s
                return Answered(task.result(), hedged, self._ran_s, at_s)
        assert self._head is not None
        headers, self._head = self._head.result(), None
        return Head(headers=headers, elapsed_s=at_s)

    async def cancel(self) -> None:
        """Ends the requests in flight: connections close, and the picker frees the endpoints."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
