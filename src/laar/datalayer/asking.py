"""Send an endpoint one tiny request to see whether it answers.

`laar doctor` shows the result of `ask`, which also probes an ejected endpoint before a client's
request does: laar's costs a few tokens, whereas a client's may fail. The response is streamed and
read until it contains output, since a status of 200 proves little: engines send it before they
fail, and proxies in front of engines send it with error pages.

An engine that requires a key or does not chat answers with a 4xx status. This proves nothing, so a
client's request has to be the trial.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import aiohttp
import orjson

from laar.datalayer.fetching import options_for
from laar.datalayer.visits import until_look_s
from laar.fleet.membership import EndpointSpec, goes_by
from laar.health import Kind, Reply, judge
from laar.protocol.answers import AnswerReader
from laar.protocol.headers import RANK, media_type, retry_after_s
from laar.protocol.usefulness import REDIRECTS, flaw_of_type
from laar.request import Api

TIMEOUT_S = 10.0
"""Timeout of a whole response. Engines that need longer for a token should not get traffic yet."""
MAX_UNDER_WAY = 16
"""Maximum number of requests in flight, so that probes of a failed pool do not all coincide."""
_MAX_BYTES = 4096
_TOKENS = 8
"""Token limit of the response. The response is read only up to its first output, but its first
tokens may be reasoning, which engines do not show."""

Asking = Callable[[aiohttp.ClientSession], Coroutine[None, None, None]]
"""Makes a request, and records the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of `ask`.

    Args:
        reply: the response; None if there was none.
        failed: kind of failure if the endpoint accepted the connection, then sent nothing or
            closed it.
        problem: why there is no response; else empty.
        refused: the connection was refused: no process listens there.
    """

    reply: Reply | None = None
    failed: Kind | None = None
    problem: str = ""
    refused: bool = False

    @property
    def verdict(self) -> Kind | str | None:
        """`GOOD`, a kind of failure, or None if the result says nothing about the endpoint."""
        return judge(self.reply) if self.reply is not None else self.failed


def new_session(timeout_s: float = TIMEOUT_S) -> aiohttp.ClientSession:
    """Return a session for `ask` without keep-alive: an open connection proves nothing."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=MAX_UNDER_WAY, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def ask(session: aiohttp.ClientSession, spec: EndpointSpec) -> ProbeResult:
    """Send one tiny chat request; return the endpoint's failure instead of raising it."""
    body = {
        "model": spec.models[0],
        "messages": [{"role": "user", "content": "1"}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {"content-type": "application/json", "user-agent": "laar-trial"}
    if spec.rank is not None:
        headers[RANK] = str(spec.rank)
    try:
        options = options_for(spec)
        async with session.post(
            spec.url("/v1/chat/completions"),
            data=orjson.dumps(body),
            headers=headers | options.pop("headers", {}),
            allow_redirects=False,
            **options,
        ) as answer:
            return ProbeResult(reply=await read_answer(answer, spec))
    except aiohttp.ClientConnectorError as error:
        return ProbeResult(
            problem=f"can't be reached: {error.strerror or type(error).__name__}",
            refused=isinstance(error.os_error, ConnectionRefusedError),
        )
    except TimeoutError:
        return ProbeResult(failed=Kind.HANG, problem="accepts the connection but sends nothing")
    except aiohttp.ServerDisconnectedError:
        return ProbeResult(failed=Kind.STATUS, problem="accepts the connection and closes it")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return ProbeResult(problem=f"fails: {type(error).__name__}")


async def read_answer(answer: aiohttp.ClientResponse, spec: EndpointSpec) -> Reply:
    """Read as much of a response as is needed to judge it."""
    given = media_type(answer.headers.get("content-type", ""))
    text = b""
    found = None
    # Accept both types, since an engine that ignores `stream` answers in one piece.
    if answer.status in REDIRECTS or (
        answer.status == 200
        and all(flaw_of_type(given, Api.CHAT, stream=stream) for stream in (True, False))
    ):
        found = Reply(status=answer.status, found=Kind.TYPE, detail=given or "a redirect")
    reader = AnswerReader(
        events=given == "text/event-stream" if given else None,
        api=Api.CHAT if answer.status == 200 else Api.OPAQUE,
        compressed=answer.headers.get("content-encoding", "identity") != "identity",
    )
    while found is None and len(text) < _MAX_BYTES:
        chunk = await answer.content.readany()
        text += chunk
        found = reader.feed(chunk) if chunk else reader.end()
        if not chunk:
            break
    if answer.status < 400 and found is not None:
        if goes_by(found.model, spec.models):
            found.model = ""
        return found
    return Reply(
        status=answer.status,
        retry_after_s=retry_after_s(answer.headers.get("retry-after", ""), time.time()),
        text=text[:_MAX_BYTES],
    )


async def keep_asking(due: Callable[[int], Sequence[Asking]], most: int = MAX_UNDER_WAY) -> None:
    """Probe endpoints until cancelled.

    Args:
        due: returns up to the given number of requests that are due and not in progress.
        most: maximum number of requests in flight.
    """
    async with new_session() as session, asyncio.TaskGroup() as tasks:
        under_way: set[asyncio.Task[None]] = set()
        while True:
            for asking in due(most - len(under_way)):
                task = tasks.create_task(asking(session), name="ask")
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(until_look_s())
