"""Ask until the answer is correct: ask, check, and ask again with the models tried.

The time to correct answer is the user's wait: the sum of the attempts' latencies and requested
pauses up to the first correct answer, right-censored if the loop gives up (LAAR, section 4). The
picker keeps no session: its answer lists the models tried so far, and the loop returns that list
with the next attempt (LAAR, section 5.4). Once every model has been tried, the loop stops where a
repeated attempt would give the same answer, as at temperature 0.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, wraps
from time import time
from typing import ParamSpec, TypeVar
from uuid import uuid4

import aiohttp

from laar.accuracy.retry import with_model
from laar.client.transport import HttpReply, completions_url, post
from laar.errors import SettingError
from laar.protocol import headers as names
from laar.request import is_reproducible

P = ParamSpec("P")
T = TypeVar("T")

RETRYABLE = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Statuses after which another attempt makes sense; 0 means no answer at all."""

MAX_WAIT_S = 30.0
"""Maximum pause between attempts, whatever `retry-after` asks for."""

_FIRST_WAIT_S = 0.5

_COMPANION_S = (0.01, 0.1, 0.5)
"""Pauses before a companion is sent and, if the request that it accompanies has not reached the
picker yet, sent again."""

_REFUSED = 409
"""Status of a companion that is not worth what it costs others, or is not known."""

Message = Mapping[str, object]
Check = Callable[[str], bool]

_TIMEOUT_S = 600.0  # per attempt; a 64K prompt in a deep queue takes minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request of the loop.

    Args:
        model: the model that answered, from the picker's header or else the answer's body.
        endpoint: the endpoint that answered; None if the picker did not report it.
        decision_id: id of the picker's decision, for reporting an outcome.
        reason: the picker's reason code.
        correct: result of the check; False for an attempt without an answer.
        waited_s: seconds paused before this attempt.
        error: why there is no answer, or why the check failed.
    """

    model: str | None
    endpoint: str | None
    decision_id: str | None
    reason: str | None
    status: int
    latency_s: float
    ttft_s: float | None
    waited_s: float
    prompt_tokens: int | None
    answer: str | None
    correct: bool
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of the loop.

    Args:
        answer: the correct answer, or else the last one; None if there was none.
        ttca_s: time to correct answer; a lower bound if `censored`.
        censored: the loop gave up before a correct answer.
        exhausted: it gave up because every model had been tried.
    """

    answer: str | None
    correct: bool
    attempts: tuple[Attempt, ...]
    ttca_s: float
    censored: bool
    exhausted: bool


async def until_correct(
    messages: Sequence[Message],
    check: Check,
    *,
    base_url: str,
    session: aiohttp.ClientSession | None = None,
    model: str = "auto",
    max_attempts: int = 10,
    at_once: int = 1,
    stop_when_exhausted: bool | None = None,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Outcome:
    """Ask, check, and ask again through the picker until the answer is correct.

    If the check raises, the attempt counts as wrong and its `error` holds the exception. A status
    that no retry can fix ends the loop.

    Args:
        messages: messages of the chat, in the OpenAI form.
        check: returns whether an answer's text is correct. It runs on the event loop, so keep it
            fast.
        base_url: URL of Envoy, with or without ``/v1``.
        session: an aiohttp session to share connections with.
        model: model name; a virtual name lets the picker choose, a concrete name restricts it.
        max_attempts: attempts after which the outcome is censored; the paper's cap R.
        at_once: 2 to ask a second model at the same time, take the first correct answer and cancel
            the other request. The picker refuses the second where it is not worth what it costs
            others; there is then one request, as without.
        stop_when_exhausted: stop once every model has been tried; None: unless `params` make
            answers vary, so that another attempt may be right.
        stream: ask for a stream; attempts then include their time to first token.
        headers: headers of each attempt, such as ``authorization`` or ``x-laar-task``.
        params: more fields of the body, such as ``max_tokens``; temperature is 0 unless given.
        timeout_s: timeout of one attempt.

    Raises:
        SettingError: `base_url` is not a URL, `max_attempts` is below 1, `at_once` is neither 1
            nor 2, or `check` is asynchronous.
    """
    if max_attempts < 1:
        raise SettingError(f"max_attempts is {max_attempts}; at least one attempt is needed")
    if at_once not in (1, 2):
        raise SettingError(f"at_once is {at_once}; 1 or 2 models can be asked at once")
    body = {"model": model, "messages": list(messages), "temperature": 0, **(params or {})}
    if stop_when_exhausted is None:
        stop_when_exhausted = is_reproducible(body)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = {names.WRONG_ANSWER: names.RETRY, **(headers or {})}
    url = completions_url(base_url)
    async with contextlib.AsyncExitStack() as stack:
        if session is None:
            session = await stack.enter_async_context(aiohttp.ClientSession())
        send = partial(post, session, url, body, timeout_s=timeout_s)
        loop = _Loop(send, check, sent, max_attempts, at_once, stop_when_exhausted)
        stack.push_async_callback(loop.cancel)
        return await loop.run()


@dataclass(slots=True)
class _Loop:
    """The attempts of one question: those made, and those in flight."""

    send: Callable[[Mapping[str, str]], Awaitable[HttpReply]]
    check: Check
    headers: dict[str, str]
    max_attempts: int
    at_once: int
    stop_when_exhausted: bool
    made: list[Attempt] = field(default_factory=list)
    running: dict[asyncio.Task[tuple[HttpReply, float]], _Sent] = field(default_factory=dict)
    now_s: float = 0.0
    waited_s: float = 0.0
    exhausted: bool = False
    may_pair: bool = True

    async def run(self) -> Outcome:
        """Ask until an answer is correct, or no other attempt makes sense."""
        is_over = False
        while not is_over and self._in_flight():
            await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
            task = next(each for each in self.running if each.done())
            is_over = self._take(self.running.pop(task), *task.result())
        answers = [attempt.answer for attempt in self.made if attempt.answer is not None]
        correct = self.made[-1].correct
        return Outcome(
            answer=answers[-1] if answers else None,
            correct=correct,
            attempts=tuple(self.made),
            ttca_s=self.now_s,
            censored=not correct,
            exhausted=self.exhausted and not correct,
        )

    def _in_flight(self) -> bool:
        """Send as many requests as may be in flight; return whether any is."""
        while (
            not self.exhausted
            and len(self.made) + len(self.running) < self.max_attempts
            and (not self.running or (self.may_pair and len(self.running) < self.at_once))
        ):
            ask = _Sent(self.now_s, next((one.id for one in self.running.values()), ""))
            own: Mapping[str, str] = self.headers
            pauses: Sequence[float] = (self.waited_s,)
            if self.at_once > 1:
                own = {**own, names.REQUEST_ID: ask.id}
            if ask.companion_of:
                own, pauses = {**own, names.COMPANION_OF: ask.companion_of}, _COMPANION_S
            self.running[asyncio.create_task(_post_after(pauses, partial(self.send, own)))] = ask
        return bool(self.running)

    def _take(self, ask: _Sent, reply: HttpReply, paused_s: float) -> bool:
        """Record a reply; return whether it ends the loop."""
        self.may_pair = not (ask.companion_of and reply.status == _REFUSED)
        if not self.may_pair:
            return False
        self.now_s = ask.began_s + paused_s + reply.latency_s
        self.made.append(judged(reply, self.check, paused_s))
        if self.made[-1].correct or (reply.status not in RETRYABLE and reply.status != 200):
            return True
        if tried := reply.headers.get(names.TRIED):
            # Its other models may lack one that has failed since, or name one still asked.
            earlier = filter(None, self.headers.get(names.TRIED, "").split(","))
            self.headers[names.TRIED] = ",".join(with_model([*earlier], tried.split(",")[-1]))
        # A refused request may succeed next time, so its model does not count as tried.
        is_last = reply.status == 200 and reply.headers.get(names.EXHAUSTED) == "true"
        self.exhausted = self.exhausted or (self.stop_when_exhausted and is_last)
        self.waited_s = pause_s(reply, len(self.made))
        return False

    async def cancel(self) -> None:
        """Cancel the requests in flight: their connections close, and the engines drop them."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request in flight: when it began, and the request that it accompanies, if any."""

    began_s: float
    companion_of: str
    id: str = field(default_factory=lambda: uuid4().hex)


async def _post_after(
    pauses_s: Sequence[float], send: Callable[[], Awaitable[HttpReply]]
) -> tuple[HttpReply, float]:
    """Post after the first pause, and after the next if the first request is not known yet."""
    paused_s = 0.0
    for pause_s in pauses_s:
        paused_s += pause_s
        await asyncio.sleep(pause_s)
        reply = await send()
        if reply.headers.get(names.REASON) != "no-companion":
            break
    return reply, paused_s


def judged(reply: HttpReply, check: Check, waited_s: float) -> Attempt:
    """Return the attempt for a reply.

    Raise `SettingError` if the check is asynchronous, so any answer would count as correct.
    """
    answer = reply.completion
    correct, error, verdict = False, reply.error, None
    if answer is not None:
        try:
            verdict = check(answer.text)
            correct = bool(verdict)
        except Exception as fault:  # noqa: BLE001  # user code: report its error
            error = f"the check raised {type(fault).__name__}: {fault}"
    if isinstance(verdict, Awaitable):
        if isinstance(verdict, Coroutine):
            verdict.close()
        raise SettingError("the check is asynchronous: pass one that returns its verdict at once")
    return Attempt(
        model=reply.headers.get(names.MODEL) or (answer.model if answer else None),
        endpoint=reply.headers.get(names.ENDPOINT),
        decision_id=reply.headers.get(names.DECISION_ID),
        reason=reply.headers.get(names.REASON),
        status=reply.status,
        latency_s=reply.latency_s,
        ttft_s=reply.ttft_s,
        waited_s=waited_s,
        prompt_tokens=answer.prompt_tokens if answer else None,
        answer=answer.text if answer else None,
        correct=correct,
        error=error,
    )


def pause_s(reply: HttpReply, attempts_made: int) -> float:
    """Return the pause after a reply: from `retry-after`, or exponential after refusals."""
    if reply.status == 200:
        return 0.0
    asked_s = names.retry_after_s(reply.headers.get(names.RETRY_AFTER, ""), time())
    if asked_s is not None:
        return min(asked_s, MAX_WAIT_S)
    return min(_FIRST_WAIT_S * 2.0 ** min(attempts_made - 1, 10), MAX_WAIT_S)


def blocking(call: Callable[P, Coroutine[None, None, T]]) -> Callable[P, T]:
    """Return a synchronous version of a coroutine function, for code without an event loop.

    If an event loop is running, as in notebooks, it is blocked while another thread does the work.
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
