"""Ask until the answer is correct: the async and the sync function."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

import aiohttp

from laar.client.loop import Check, Message, Outcome, Reply, Wait, attempts
from laar.client.transport import completions_url, post

P = ParamSpec("P")
T = TypeVar("T")

_TIMEOUT_S = 600.0  # per attempt; a 64K prompt in a deep queue takes minutes


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
) -> Outcome:
    """Ask, check, and ask again through the picker until the answer is correct.

    Args:
        messages: messages of the chat, in the OpenAI form.
        check: returns whether an answer's text is correct. It runs on the event loop, so keep it
            fast.
        base_url: URL of Envoy, with or without ``/v1``.
        session: an aiohttp session to share connections with.
        model: model name; a virtual one lets the picker choose, a concrete one restricts it.
        max_attempts: attempts after which the outcome is censored; the paper's cap R.
        stop_when_exhausted: stop once every model has been tried.
        stream: ask for a stream; attempts then carry their time to first token.
        headers: headers of each attempt, such as ``authorization`` or ``x-laar-task``.
        params: further fields of the body, such as ``max_tokens``; temperature is 0 unless given.
        timeout_s: timeout of one attempt.

    Raises:
        SettingError: `base_url` is not a URL, or the check is asynchronous.
    """
    steps = attempts(
        messages,
        check,
        model=model,
        max_attempts=max_attempts,
        stop_when_exhausted=stop_when_exhausted,
        headers=headers,
        params=_with_stream(params, stream=stream),
    )
    url = completions_url(base_url)
    async with contextlib.AsyncExitStack() as stack:
        if session is None:
            session = await stack.enter_async_context(aiohttp.ClientSession())
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            if isinstance(step, Wait):
                await asyncio.sleep(step.duration_s)
                reply = None
            else:
                reply = await post(session, url, step, timeout_s)


def blocking(call: Callable[P, Coroutine[None, None, T]]) -> Callable[P, T]:
    """Return a synchronous version of a coroutine function, for code without an event loop.

    If an event loop is running, as in notebooks, it blocks that loop and runs in another thread.
    """

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(call(*args, **kwargs))
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, call(*args, **kwargs)).result()

    return run


until_correct_sync = blocking(until_correct)
"""Ask like `until_correct`, without an event loop; an open `session` can't be used."""


def _with_stream(params: Mapping[str, object] | None, *, stream: bool) -> dict[str, object]:
    wanted = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {**(params or {}), **wanted}
