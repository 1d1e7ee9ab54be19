"""The retry loop, without I/O: ask, check, and ask again with the models tried.

`attempts` is a generator: it yields a step (post this body, or pause), is sent the reply to a post,
and returns the `Outcome`.

The time to correct answer is the user's wait: the sum of the attempts' latencies and requested
pauses up to the first correct answer, right-censored if the loop gives up (LAAR, section 4). The
picker keeps no session: its answer lists the models tried so far, and the loop sends that list back
(LAAR, section 5.4). The loop stops once every model has been tried, because at temperature 0 a
further attempt repeats an earlier answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import TypeAlias

from laar.client.wire import Completion
from laar.errors import SettingError
from laar.protocol import headers as names

RETRYABLE = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Statuses after which another attempt makes sense; 0 means no answer at all."""

MAX_WAIT_S = 30.0
"""Longest pause accepted from `retry-after`; beyond it the user should see the error."""

_FIRST_WAIT_S = 0.5

Message = Mapping[str, object]
Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A step: post this chat completion."""

    body: dict[str, object]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A step: pause before the next attempt."""

    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a `Send`.

    Args:
        status: HTTP status; 0 if there was no answer.
        latency_s: seconds from sending to the last byte.
        ttft_s: seconds from sending to the first token of a streamed answer, including reasoning.
        headers: headers of the answer, names in lower case.
        completion: the answer; None without one, and `error` has the reason.
    """

    status: int
    latency_s: float
    ttft_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    completion: Completion | None = None
    error: str | None = None


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
        answer: the correct answer, else the last one; None if there was none.
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


Steps: TypeAlias = Generator[Send | Wait, Reply | None, Outcome]


def attempts(
    messages: Sequence[Message],
    check: Check,
    *,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
) -> Steps:
    """Run the loop; see the module's docstring for how to drive it.

    If the check raises, the attempt counts as wrong and its `error` has the exception. A status
    that no retry can fix ends the loop.
    """
    if max_attempts < 1:
        raise SettingError(f"max_attempts is {max_attempts}; at least one attempt is needed")
    body = {"model": model, "messages": list(messages), "temperature": 0, **(params or {})}
    sent = dict(headers or {})
    made: list[Attempt] = []
    waited_s = took_s = 0.0
    exhausted = False
    while len(made) < max_attempts and not exhausted:
        if waited_s:
            took_s += waited_s
            yield Wait(duration_s=waited_s)
        reply = yield Send(body=body, headers=dict(sent))
        assert reply is not None, "the driver answers a post with its reply"
        took_s += reply.latency_s
        made.append(_judged(reply, check, waited_s))
        if made[-1].correct or (reply.status not in RETRYABLE and reply.status != 200):
            break
        if tried := reply.headers.get(names.TRIED):
            sent[names.TRIED] = tried
        # A refused request may succeed next time, so it exhausts no model.
        is_last = reply.status == 200 and reply.headers.get(names.EXHAUSTED) == "true"
        exhausted = stop_when_exhausted and is_last
        waited_s = pause_s(reply, len(made))
    return _outcome(made, took_s, exhausted=exhausted)


def _judged(reply: Reply, check: Check, waited_s: float) -> Attempt:
    """Return the attempt for a reply.

    Raises:
        SettingError: the check is asynchronous, so any answer would count as correct.
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
        raise SettingError("the check is asynchronous: give one that returns its verdict at once")
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


def pause_s(reply: Reply, attempts_made: int) -> float:
    """Return the pause after a reply: from `retry-after`, or exponential after refusals."""
    if reply.status == 200:
        return 0.0
    asked_s = names.retry_after_s(reply.headers.get(names.RETRY_AFTER, ""), time())
    if asked_s is not None:
        return min(asked_s, MAX_WAIT_S)
    return min(_FIRST_WAIT_S * 2.0 ** min(attempts_made - 1, 10), MAX_WAIT_S)


def _outcome(made: list[Attempt], ttca_s: float, *, exhausted: bool) -> Outcome:
    correct = made[-1].correct
    answers = [attempt.answer for attempt in made if attempt.answer is not None]
    return Outcome(
        answer=answers[-1] if answers else None,
        correct=correct,
        attempts=tuple(made),
        ttca_s=ttca_s,
        censored=not correct,
        exhausted=exhausted,
    )
