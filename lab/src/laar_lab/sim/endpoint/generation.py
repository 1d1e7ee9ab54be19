"""Run a generation request in the engine, and send its output as a body or a stream.

vLLM's answers are imitated closely enough to trip a faulty relay: a stream's headers are sent
before the engine has seen the request, so a later error comes as an SSE event with status 200.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from laar.errors import RequestError
from laar_lab.sim.endpoint.answering import Answer
from laar_lab.sim.endpoint.driver import EngineDriver, Flight, Lost
from laar_lab.sim.endpoint.errors import ApiError, error_event
from laar_lab.sim.endpoint.faults import Fault, FaultKind
from laar_lab.sim.endpoint.metrics import ServingMetrics
from laar_lab.sim.endpoint.replies import Reply, Usage
from laar_lab.sim.engine.interface import Job, Load

ENGINE_GONE = ApiError(500, "EngineCore encountered an issue. See the server's own logs.")
QUEUE_FULL = ApiError(503, "The engine is currently busy: its queue is full.")

_BREAKS = {
    FaultKind.RESET,
    FaultKind.CUT,
    FaultKind.STALL,
    FaultKind.LATE_ERROR,
}
"""Faults that occur after some tokens."""

_JSON = (b"content-type", b"application/json")
_SSE = (b"content-type", b"text/event-stream; charset=utf-8")


def set_to_fail(status: int) -> ApiError:
    """Return the error of an endpoint that is set to fail with this status."""
    return ApiError(status, "This endpoint is set to refuse.")


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected, or the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Refusal(Response):
    """An error from the engine: a status, or an event of a stream in progress.

    Args:
        error: the error.
        stream: whether a stream is in progress.
        status: status of an answer that is not a stream; None for the error's status.
    """

    def __init__(self, error: ApiError, *, stream: bool, status: int | None = None) -> None:
        self._error = error
        self._is_stream = stream
        self._status = error.status if status is None else status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error."""
        if self._is_stream:
            await _send_head(send, 200, _SSE)
            await _send_body(send, error_event(self._error))
        else:
            await _send_json(send, self._status, self._error.body())


class Silence(Response):
    """A hung engine: sends at most a stream's headers, then nothing until the client gives up.

    Args:
        head: whether to send the headers.
    """

    def __init__(self, *, head: bool) -> None:
        self._has_head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers if requested, and wait for the client to disconnect."""
        if self._has_head:
            await _send_head(send, 200, _SSE)
        await until_disconnect(receive)


class Generation(Response):
    """Runs a job and sends its output; a client that disconnects aborts the job.

    Args:
        driver: driver of the endpoint's engine.
        metrics: metrics of the endpoint since its last restart.
        job: the job for the engine.
        answer: the text of its output.
        reply: format of the output.
        stream: whether to send it in chunks or in one body.
        fault: slowness, or a fault after some tokens. Others are handled elsewhere.
        load_format: value of the request's ``endpoint-load-metrics-format``.
        reset: resets the connection of a scope.
        close: closes the connection of a scope gracefully.
    """

    def __init__(
        self,
        *,
        driver: EngineDriver,
        metrics: ServingMetrics,
        job: Job,
        answer: Answer,
        reply: Reply,
        stream: bool,
        fault: Fault | None,
        load_format: str | None,
        reset: Callable[[Scope], None],
        close: Callable[[Scope], None],
    ) -> None:
        self._driver = driver
        self._metrics = metrics
        self._job = job
        self._answer = answer
        self._reply = reply
        self._is_stream = stream
        self._load_format = load_format
        self._reset = reset
        self._close = close
        self._break: FaultKind | None = None
        self._last_s = 0.0
        self._cut_at = job.output_tokens + 1
        self._drag = 0.0
        if fault is not None and fault.value is not None:
            if fault.kind in _BREAKS:
                self._break = fault.kind
                self._cut_at = min(int(fault.value), job.output_tokens)
            elif fault.kind is FaultKind.SLOW:
                self._drag = fault.value - 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the job until it is finished or the client disconnects."""
        try:
            flight = self._driver.submit(self._job)
        except RequestError as refused:
            full = refused.status == QUEUE_FULL.status
            if full:
                self._metrics.rejected()
            error = QUEUE_FULL if full else ApiError(refused.status, str(refused))
            await Refusal(error, stream=self._is_stream and full)(scope, receive, send)
            return
        watch = asyncio.create_task(until_disconnect(receive))
        watch.add_done_callback(lambda _: flight.lose(Lost.CLIENT_LEFT))
        try:
            await (self._stream if self._is_stream else self._whole)(flight, send)
            if flight.lost is Lost.CRASH:
                self._reset(scope)
                await watch
            elif flight.tokens >= self._cut_at and self._break is not FaultKind.LATE_ERROR:
                if self._break is FaultKind.RESET:
                    self._reset(scope)
                elif self._break is FaultKind.CUT:
                    self._close(scope)
                await watch
        finally:
            watch.cancel()
            self._driver.abort(self._job.id)

    async def _stream(self, flight: Flight, send: Send) -> None:
        await _send_head(send, 200, _SSE)
        sent, finish = 0, None
        while finish is None:
            made, finish = await self._next(flight, sent)
            if flight.lost is Lost.SHUTDOWN:
                await _send_body(send, error_event(ENGINE_GONE))
            if flight.lost is not None:
                return
            if made >= self._cut_at:
                made, finish = self._cut_at, None
            usage = self._usage(flight, made)
            chunk = self._reply.opening(usage) if sent == 0 else b""
            chunk += self._reply.piece(self._answer.piece(sent, made), finish, usage)
            if made >= self._cut_at:
                if self._break is FaultKind.LATE_ERROR:
                    await _send_body(send, chunk + error_event(set_to_fail(500)))
                else:
                    await _send_body(send, chunk, more=True)
                return
            if finish is not None:
                chunk += self._reply.closing(self._answer.piece(0, made), finish, usage)
            await _send_body(send, chunk, more=finish is None)
            sent = made

    async def _whole(self, flight: Flight, send: Send) -> None:
        made, finish = 0, None
        while finish is None:
            made, finish = await self._next(flight, made)
            if flight.lost is Lost.SHUTDOWN:
                await _send_json(send, ENGINE_GONE.status, ENGINE_GONE.body())
            if flight.lost is not None or made >= self._cut_at:
                break
        if flight.lost is not None or self._break is FaultKind.RESET:
            return
        if self._break is FaultKind.LATE_ERROR:
            await _send_json(send, 200, set_to_fail(500).body())
            return
        finish = finish or self._answer.finish
        body = self._reply.whole(self._answer.piece(0, made), finish, self._usage(flight, made))
        if self._break is not None:
            await _send_head(send, 200, _JSON, _length(body))
            await _send_body(send, body[: len(body) // 2], more=True)
            return
        load = _load_header(self._load_format, self._driver.reported)
        await _send_json(send, 200, body, *load)

    async def _next(self, flight: Flight, seen: int) -> tuple[int, str | None]:
        """Wait for more tokens; return their total so far, and at the end the finish reason."""
        await flight.more(seen)
        made, at_s, finished = flight.tokens, flight.updated_s, flight.finished
        if self._drag and flight.lost is None:
            due_s = at_s + self._drag * (at_s - flight.submitted_s)
            await asyncio.sleep(due_s - time.monotonic())
        if flight.lost is None:
            self._count(flight, seen, made, finished, at_s)
        return made, self._answer.finish if finished else None

    def _count(self, flight: Flight, seen: int, made: int, finished: bool, at_s: float) -> None:
        job, metrics = self._job, self._metrics
        queued_s = flight.started_s - flight.submitted_s
        if seen == 0:
            metrics.first_token(
                prompt=job.prompt_tokens,
                cached=flight.cached_tokens,
                queued_s=queued_s,
                prefill_s=flight.first_s - flight.started_s,
            )
            seen, self._last_s = 1, flight.first_s
        if made > seen:
            metrics.next_tokens(made - seen, (at_s - self._last_s) / (made - seen))
        self._last_s = at_s
        if finished:
            metrics.finished(
                reason=self._answer.finish,
                prompt=job.prompt_tokens,
                cached=flight.cached_tokens,
                generated=made,
                total_s=at_s - flight.submitted_s,
                queued_s=queued_s,
                decode_s=at_s - flight.first_s,
            )

    def _usage(self, flight: Flight, made: int) -> Usage:
        return Usage(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=made,
            cached_tokens=flight.cached_tokens,
        )


def _load_header(wanted: str | None, load: Load) -> list[tuple[bytes, bytes]]:
    """Return the two readings of vLLM's ORCA header in the requested format."""
    readings = {
        "num_requests_waiting": float(load.waiting),
        "kv_cache_usage_perc": load.kv_usage,
    }
    if wanted == "TEXT":
        text = "TEXT " + ", ".join(f"named_metrics.{k}={v}" for k, v in readings.items())
    elif wanted == "JSON":
        text = "JSON " + orjson.dumps({"named_metrics": readings}).decode()
    else:
        return []
    return [(b"endpoint-load-metrics", text.encode())]


async def _send_head(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def _send_json(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await _send_head(send, status, _JSON, _length(body), *headers)
    await _send_body(send, body)


def _length(body: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", str(len(body)).encode())


async def _send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
