"""`Process` on gRPC's own server, with the extra `grpc`.

What costs on grpc.aio is its own loop, about 100 us for a message in and out. So there is one
`read` and at most one `write` for a message, and nothing is spawned for a stream but its task.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc

from laar.server.extproc.exchange import Exchange
from laar.server.extproc.processor import SERVICE, UNREADABLE, ExternalProcessor


class _GoneError(Exception):
    """The stream ended while an answer was written."""


def handler(processor: ExternalProcessor) -> grpc.GenericRpcHandler:
    """The generic handler to add to a grpc.aio server."""
    method = grpc.stream_stream_rpc_method_handler(
        partial(_serve, processor),
        request_deserializer=None,  # the exchange reads and writes messages itself
        response_serializer=None,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})


async def _serve(
    processor: ExternalProcessor, _requests: object, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Runs a stream in a task of its own, which a reset by Envoy does not cancel.

    Envoy resets each stream at its end, and gRPC then cancels this coroutine. A read that is
    cancelled never frees its operations (about 100 bytes, in all versions of grpc.aio so far);
    left alone it ends by itself. Only a request that waits in the queue is cancelled.

    The cancellation then goes on. If this coroutine returned, gRPC would send a status on the
    stream that is gone. That fails, and operations that fail are never freed either.
    """
    task: asyncio.Task[None] | None = None

    def let_go() -> None:
        if task is not None:
            task.cancel()

    exchange = processor.open(lambda: context.invocation_metadata() or (), let_go)
    task = asyncio.create_task(_process(context, exchange))
    try:
        await asyncio.wait((task,))
        task.result()
    except asyncio.CancelledError:
        if exchange.queued:
            task.cancel()
        await asyncio.wait((task,))
        raise


async def _process(context: grpc.aio.ServicerContext[Any, Any], exchange: Exchange) -> None:
    try:
        while (data := await context.read()) is not grpc.aio.EOF:
            wait = exchange.receive(data)
            del data  # a body is not to be held for as long as its answer takes
            await _write(context, exchange)
            while wait is not None:
                wait = await exchange.go_on(wait)
                await _write(context, exchange)
            if exchange.unreadable:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
            if exchange.over:
                break
    except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.UsageError, _GoneError):
        pass  # Envoy reset the stream: the exchange is over, which `finally` settles
    finally:
        exchange.close()


async def _write(context: grpc.aio.ServicerContext[Any, Any], exchange: Exchange) -> None:
    answers, exchange.answers = exchange.answers, []
    try:
        for answer in answers:
            await context.write(answer)
    except (grpc.aio.AbortError, grpc.aio.UsageError):
        raise
    except Exception as fault:  # gRPC has no public name for the error that it raises here
        raise _GoneError from fault
