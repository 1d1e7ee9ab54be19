"""Send questions with known answers, and classify how each request ended.

An echoing endpoint's answer contains its model, the requested name and a digest of the question
(`laar_lab.sim.endpoint.echo`), so short, foreign or swapped answers are detected. An error must
state its reason in an OpenAI error body, from laar, from Envoy's configuration or from the engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
import orjson

from laar_lab.sim.endpoint.echo import echo_text

__all__ = ["BROKEN", "GOOD", "End", "Ended", "Names", "Question", "ask", "draw", "outcome"]

_LONG_SHARE, _STREAM_SHARE = 0.15, 0.5
_WORDS = ("river", "stone", "lamp", "north", "seven", "copper", "window", "grain", "signal", "moth")
_SIM_ERROR = "This endpoint is set to refuse."
_SIM_FULL = "its queue is full"


class End(StrEnum):
    """How a request ended, as its client saw it."""

    RIGHT = "right"
    FAILED_OPEN = "right, without laar"
    LEFT = "client hung up"
    REFUSED = "error with a reason"
    ENGINE = "engine's own error"
    EVENT = "engine's error in a 200"
    CUT = "answer cut off"
    TIMEOUT = "client's deadline"
    NAMELESS = "error without a reason"
    NO_CONNECTION = "no connection to Envoy"
    UNSENT = "not sent: too many in flight"
    WRONG = "WRONG answer"


GOOD = frozenset({End.RIGHT, End.FAILED_OPEN})
"""Outcomes with a correct answer."""

BROKEN = frozenset({End.CUT, End.TIMEOUT, End.NO_CONNECTION})
"""Outcomes that only an active fault can excuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request.

    Args:
        asked: requested model name.
        text: text of the only message.
        tokens: tokens of the answer.
        stream: whether the answer is streamed.
        leaves_after: chunks after which the client hangs up; None to read the whole answer.
        headers: additional request headers.
    """

    asked: str
    text: str
    tokens: int
    stream: bool
    leaves_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return the request body."""
        return orjson.dumps(
            {
                "model": self.asked,
                "messages": [{"role": "user", "content": self.text}],
                "max_tokens": self.tokens,
                "stream": self.stream,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The models that may answer requests for each name.

    Args:
        model_at: the model of each endpoint, by address.
        allowed: the models allowed for each requested name.
    """

    model_at: Mapping[str, str]
    allowed: Mapping[str, frozenset[str]]


@dataclass(slots=True, kw_only=True)
class Ended:
    """A completed request; times are monotonic seconds.

    `endpoint` is the one that answered, `picked` the one that laar reports as chosen; each is empty
    if the answer does not name it.
    """

    question: Question
    began_s: float
    ended_s: float
    end: End
    status: int = 0
    endpoint: str = ""
    picked: str = ""
    first_s: float | None = None
    detail: str = ""

    @property
    def took_s(self) -> float:
        """Return the seconds from sending to the last byte."""
        return self.ended_s - self.began_s


def outcome(ended: Sequence[Ended]) -> dict[str, object]:
    """Return how many requests there were and how many lost, their ends, and details of losses."""
    lost = [e for e in ended if e.end not in GOOD]
    return {
        "requests": len(ended),
        "lost": len(lost),
        "ends": {str(end): n for end, n in Counter(e.end for e in ended).items()},
        "examples": sorted({e.detail for e in lost if e.detail})[:3],
    }


def draw(
    rng: random.Random,
    number: int,
    *,
    names: tuple[str, ...],
    tokens: tuple[int, int] = (8, 24),
    leave_share: float = 0.0,
) -> Question:
    """Return a random question: short or long, streamed or not; the client may hang up."""
    is_long = rng.random() < _LONG_SHARE
    words = rng.choices(_WORDS, k=rng.randint(400, 1600) if is_long else rng.randint(5, 60))
    stream = rng.random() < _STREAM_SHARE
    leaves = rng.random() < leave_share
    return Question(
        asked=rng.choice(names),
        text=f"Question {number}: {' '.join(words)}?",
        tokens=rng.randint(*tokens),
        stream=stream,
        leaves_after=(rng.randint(0, 3) if stream else 0) if leaves else None,
    )


async def ask(
    http: aiohttp.ClientSession, url: str, question: Question, names: Names, *, limit_s: float
) -> Ended:
    """Send a question and judge its answer; raise nothing but cancellation."""
    began_s = time.monotonic()
    ended = Ended(question=question, began_s=began_s, ended_s=began_s, end=End.TIMEOUT)
    try:
        async with asyncio.timeout(limit_s):
            await _exchange(http, url, ended, names)
    except TimeoutError:
        ended.end = End.TIMEOUT
    except (aiohttp.ClientConnectorError, aiohttp.ClientConnectionResetError) as error:
        ended.end, ended.detail = End.NO_CONNECTION, repr(error)
    except (aiohttp.ClientError, ConnectionError) as error:
        ended.end, ended.detail = End.CUT, repr(error)
    ended.ended_s = time.monotonic()
    return ended


async def _exchange(http: aiohttp.ClientSession, url: str, ended: Ended, names: Names) -> None:
    question = ended.question
    headers = {"content-type": "application/json", **question.headers}
    path = url + "/v1/chat/completions"
    async with http.post(path, data=question.body(), headers=headers) as answer:
        ended.status = answer.status
        ended.endpoint = answer.headers.get("x-sim-endpoint", "")
        ended.picked = answer.headers.get("x-laar-endpoint", "")
        received = bytearray()
        chunks = 0
        async for chunk in answer.content.iter_any():
            if ended.first_s is None:
                ended.first_s = time.monotonic()
            received += chunk
            if question.leaves_after is not None and chunks >= question.leaves_after:
                ended.end = End.LEFT
                answer.close()
                return
            chunks += 1
        if ended.status != 200:
            _judge_error(ended, bytes(received))
        elif question.stream:
            _judge_stream(ended, bytes(received), names)
        else:
            _judge_whole(ended, bytes(received), names)


def _judge_error(ended: Ended, body: bytes) -> None:
    """Classify an error: one with an endpoint's header is the engine's, others need a reason."""
    message, reason = _error_in(body)
    ended.detail = f"{ended.status} {reason or ''}: {message or repr(body[:120])}"
    if message is None:
        ended.end = End.NAMELESS
    elif ended.endpoint:
        ended.end = End.ENGINE if _is_simulated(message) else End.NAMELESS
    else:
        ended.end = End.REFUSED


def _judge_stream(ended: Ended, body: bytes, names: Names) -> None:
    pieces, finish, done = [], None, False
    for line in body.split(b"\n"):
        if not line.startswith(b"data: "):
            continue
        if line == b"data: [DONE]":
            done = True
            continue
        try:
            event = orjson.loads(line[6:])
        except orjson.JSONDecodeError:
            ended.end, ended.detail = End.CUT, "half an event"
            return
        if "error" in event:
            ended.end, ended.detail = End.EVENT, str(event["error"])[:200]
            return
        choice = event["choices"][0] if event.get("choices") else {}
        pieces.append((choice.get("delta") or {}).get("content") or "")
        finish = choice.get("finish_reason") or finish
    if not done or finish is None:
        ended.end, ended.detail = End.CUT, "a stream without its end"
        return
    _judge_text(ended, "".join(pieces), names)


def _judge_whole(ended: Ended, body: bytes, names: Names) -> None:
    message, _ = _error_in(body)
    if message is not None:
        ended.end, ended.detail = End.EVENT, message
        return
    try:
        text = orjson.loads(body)["choices"][0]["message"]["content"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        ended.end, ended.detail = End.CUT, f"no answer in {body[:120]!r}"
        return
    _judge_text(ended, text, names)


def _judge_text(ended: Ended, text: str, names: Names) -> None:
    question = ended.question
    model = names.model_at.get(ended.endpoint, "")
    for asked in (question.asked, model):
        expected = echo_text(
            model=model, asked=asked, question=question.text, tokens=question.tokens
        )
        if text == expected:
            break
    else:
        ended.end = End.WRONG
        ended.detail = f"{ended.endpoint} answered {text[:80]!r}"
        return
    if not ended.picked:
        ended.end = End.FAILED_OPEN
    elif model in names.allowed[question.asked]:
        ended.end = End.RIGHT
    else:
        ended.end, ended.detail = End.WRONG, f"{model} was sent what {question.asked} was asked"


def _error_in(body: bytes) -> tuple[str | None, str | None]:
    """Return the message and reason of an OpenAI error body; None for other bodies."""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"]), error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None, None


def _is_simulated(message: str) -> bool:
    return _SIM_ERROR in message or _SIM_FULL in message
