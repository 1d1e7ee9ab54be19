"""Services that are written for grpc.aio, such as health, on this transport.

Methods with one request: `unary_unary` and `unary_stream`. Each call is a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import grpc

from laar.server.h2.call import Call, Handler
from laar.server.h2.framing import CallError, Code

__all__ = ["opened"]

_LOG = logging.getLogger(__name__)


def opened(method: grpc.RpcMethodHandler) -> Callable[[Call], Handler]:
    """Opens calls of a method."""
    return partial(_Task, method)


class _Context:
    """What a servicer uses of grpc.aio's context."""

    def __init__(self, method: grpc.RpcMethodHandler, call: Call) -> None:
        self._method = method
        self._call = call

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The request's headers."""
        return tuple(self._call.metadata())

    async def write(self, response: Any) -> None:
        """Sends a message."""
        self._call.send(self._method.response_serializer(response))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """Ends the call."""
        raise CallError(Code(code.value[0]), details)


class _Task(Handler):
    def __init__(self, method: grpc.RpcMethodHandler, call: Call) -> None:
        self._method = method
        self._call = call
        self._task: asyncio.Task[None] | None = None

    def receive(self, message: bytes) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._serve(message))
        else:
            self._call.end(Code.INTERNAL, "the method takes one message")

    def half_closed(self) -> None:
        if self._task is None:
            self._call.end(Code.INTERNAL, "the method takes one message")

    def closed(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, message: bytes) -> None:
        method, context = self._method, _Context(self._method, self._call)
        try:
            request = method.request_deserializer(message)
            if method.response_streaming:
                await method.unary_stream(request, context)
            else:
                await context.write(await method.unary_unary(request, context))
        except CallError as error:
            self._call.end(error.code, error.text)
        except Exception:  # noqa: BLE001 - a call's guard
            _LOG.exception("a call failed")
            self._call.end(Code.UNKNOWN, "internal error")
        else:
            self._call.end()
