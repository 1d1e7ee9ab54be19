"""Ask until the answer is correct: the async and the sync function."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import aiohttp

from laar.client.hedging import Hedge
from laar.client.loop import (
    Also,
    Answered,
    Check,
    Event,
    Head,
    Message,
    OnHead,
    Outcome,
    Reply,
    Send,
    Steps,
    Wait,
    attempts,
)
from laar.client.transport import completions_url, post
from laar.errors import SettingError

Post = Callable[[Send, OnHead], Awaitable[Reply]]

_TIMEOUT_S = 600.0  # one attempt; a 64K prompt in a deep queue takes minutes, a hung one never ends


async def until_correct(
    messages: Sequence[Message],
    check: Check,
    *,
    base_url: str,
    session: aiohttp.ClientSession | None = None,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    timeout_s: float = _TIMEOUT_S,
    hedge: Hedge | None = None,
) -> Outcome:
    """Ask, check, and ask again through the picker until the answer is correct.

    Args:
        messages: messages of the chat, in the OpenAI form.
        check: returns whether an answer's text is correct. It runs on the event loop: keep it
            short.
        base_url: Envoy's URL, with or without ``/v1``.
        session: an aiohttp session to share connections with.
        model: a virtual name lets the picker choose; a concrete one restricts it.
        max_attempts: attempts after which the outcome is censored; the paper's cap R.
        stop_when_exhausted: stop once every model has been tried.
        stream: ask for a stream; attempts then carry their time to first token.
        headers: headers of each attempt, such as ``authorization`` or ``x-laar-task``.
        params: further fields of the body, such as ``max_tokens``; temperature is 0 unless given.
        timeout_s: timeout of one attempt.
        hedge: rule for asking two models at once. Answers are streamed then, since the picker's
            estimates come with their head.

    Raises:
        SettingError: `base_url` is no URL, or the check is asynchronous.
    """
    steps = attempts(
        messages,
        check,
        model=model,
        max_attempts=max_attempts,
        stop_when_exhausted=stop_when_exhausted,
        headers=headers,
        params=_with_stream(params, stream=stream or hedge is not None),
        hedge=hedge,
    )
    url = completions_url(base_url)
    async with contextlib.AsyncExitStack() as stack:
        if session is None:
            session = await stack.enter_async_context(aiohttp.ClientSession())
        return await _race(steps, lambda send, on: post(session, url, send, timeout_s, on))


def until_correct_sync(
    messages: Sequence[Message],
    check: Check,
    *,
    base_url: str,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    timeout_s: float = _TIMEOUT_S,
    hedge: Hedge | None = None,
) -> Outcome:
    """Ask as `until_correct`, where no event loop runs.

    Raises:
        SettingError: as there, or an event loop is running here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise SettingError("an event loop is running here: await until_correct instead")
    return asyncio.run(
        until_correct(
            messages,
            check,
            base_url=base_url,
            model=model,
            max_attempts=max_attempts,
            stop_when_exhausted=stop_when_exhausted,
            stream=stream,
            headers=headers,
            params=params,
            timeout_s=timeout_s,
            hedge=hedge,
        )
    )


async def _race(steps: Steps, post: Post) -> Outcome:
    """Run the loop; no request is left in flight when it returns or is cancelled."""
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
        """Return the head of the first answer, once; then answers as they are complete."""
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
                reply = task.result()
                return Answered(reply, hedged, self._ran_s, at_s if self._second_s else None)
        assert self._head is not None
        headers, self._head = self._head.result(), None
        return Head(headers=headers, elapsed_s=at_s)

    async def cancel(self) -> None:
        """End the requests in flight: connections close, and the picker frees the endpoints."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _with_stream(params: Mapping[str, object] | None, *, stream: bool) -> dict[str, object]:
    asked = dict(params or {})
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked
