"""Ask until the answer is correct: the async and the sync driver of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import sleep
from typing import TYPE_CHECKING, TypedDict

import aiohttp

from laar.client.hedging import Hedge, hedged_attempts
from laar.client.loop import Check, Message, Outcome, Reply, Send, Steps, attempts
from laar.client.racing import Post, race
from laar.client.transport import completions_url, post, post_openai, post_openai_sync
from laar.errors import SettingError

if TYPE_CHECKING:
    import openai

_TIMEOUT_S = 600.0  # one attempt; a 64K prompt in a deep queue takes minutes, a hung one never ends


async def until_correct(
    messages: Sequence[Message],
    check: Check,
    *,
    base_url: str | None = None,
    client: openai.AsyncOpenAI | aiohttp.ClientSession | None = None,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    timeout_s: float = _TIMEOUT_S,
    hedge: Hedge | None = None,
) -> Outcome:
    """Asks, checks, and asks again through the picker until the answer is correct.

    Args:
        messages: messages of the chat, in the OpenAI form.
        check: returns whether an answer's text is correct. It runs on the event loop: keep it
            short.
        base_url: Envoy's URL, with or without ``/v1``; not needed with an `openai` client.
        client: an `openai.AsyncOpenAI`, or an aiohttp session to share connections with.
        model: a virtual name lets the picker choose; a concrete one restricts it.
        max_attempts: attempts after which the outcome is censored; the paper's cap R.
        stop_when_exhausted: stop once every model has been tried.
        stream: ask for a stream; attempts then carry their time to first token.
        headers: headers of each attempt, such as ``authorization`` or ``x-laar-task``.
        params: further fields of the body, such as ``max_tokens``; temperature is 0 unless given.
        timeout_s: time-out of one attempt.
        hedge: rule for asking two models at once. Answers are streamed then, since the picker's
            estimates come with their head.

    Raises:
        SettingError: neither a base URL nor a client that could be used asynchronously, or the
            check is asynchronous.
    """
    asked = _Asked(
        model=model,
        max_attempts=max_attempts,
        stop_when_exhausted=stop_when_exhausted,
        headers=headers,
        params=_with_stream(params, stream=stream or hedge is not None),
    )

    async def run(post: Post) -> Outcome:
        if hedge is not None:
            return await race(hedged_attempts(messages, check, hedge, **asked), post)
        return await _drive(attempts(messages, check, **asked), post)

    if client is not None and not isinstance(client, aiohttp.ClientSession):
        openai_client = client
        if not hasattr(client, "__aenter__"):
            raise SettingError(
                "client is synchronous: pass openai.AsyncOpenAI, or call until_correct_sync"
            )
        return await run(lambda send, on_head: post_openai(openai_client, send, timeout_s, on_head))
    if base_url is None:
        raise SettingError("give base_url, for example http://localhost:8080, or an openai client")
    url = completions_url(base_url)
    if client is not None:
        session = client
        return await run(lambda send, on_head: post(session, url, send, timeout_s, on_head))
    async with aiohttp.ClientSession() as own:
        return await run(lambda send, on_head: post(own, url, send, timeout_s, on_head))


def until_correct_sync(
    messages: Sequence[Message],
    check: Check,
    *,
    base_url: str | None = None,
    client: openai.OpenAI | None = None,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    timeout_s: float = _TIMEOUT_S,
    hedge: Hedge | None = None,
) -> Outcome:
    """`until_correct` for code without an event loop; takes an `openai.OpenAI`.

    Raises:
        SettingError: neither a base URL nor a synchronous client, or called from inside a running
            event loop without a client.
    """
    if client is None:
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
    if hedge is not None:
        raise SettingError("hedge needs an event loop: give base_url, or await until_correct")
    if hasattr(client, "__aenter__"):
        raise SettingError("client is asynchronous: pass openai.OpenAI, or await until_correct")
    steps = attempts(
        messages,
        check,
        model=model,
        max_attempts=max_attempts,
        stop_when_exhausted=stop_when_exhausted,
        headers=headers,
        params=_with_stream(params, stream=stream),
    )
    reply: Reply | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        if isinstance(step, Send):
            reply = post_openai_sync(client, step, timeout_s)
        else:
            sleep(step.duration_s)
            reply = None


class _Asked(TypedDict):
    """The arguments that both loops take."""

    model: str
    max_attempts: int
    stop_when_exhausted: bool
    headers: Mapping[str, str] | None
    params: Mapping[str, object] | None


async def _drive(steps: Steps, post: Post) -> Outcome:
    reply: Reply | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        if isinstance(step, Send):
            reply = await post(step, lambda _headers: None)
        else:
            await asyncio.sleep(step.duration_s)
            reply = None


def _with_stream(params: Mapping[str, object] | None, *, stream: bool) -> dict[str, object]:
    asked = dict(params or {})
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked
