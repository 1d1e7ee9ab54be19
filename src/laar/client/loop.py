"""The attempts of the retry loop in `laar.client.until`: replies, verdicts and pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import time

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
class Reply:
    """The result of a request.

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


def judged(reply: Reply, check: Check, waited_s: float) -> Attempt:
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
