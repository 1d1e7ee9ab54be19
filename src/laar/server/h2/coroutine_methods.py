"""Services whose methods take one message, such as health. Each call is a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from laar.server.h2.call import Call, Handler
from laar.server.h2.framing import CallError, Code

_LOG = logging.getLogger(__name__)

Method = Callable[[bytes], AsyncIterator[bytes]]
"""Answers a message with messages; a `CallError` ends the call."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service.

    Args:
        name: its name in paths, such as ``grpc.health.v1.Health``.
        methods: its methods by name.
    """

    name: str
    methods: Mapping[str, Method]


def opened(method: Method) -> Callable[[Call], Handler]:
    """Open calls of a method."""
    return partial(_Task, method)


class _Task(Handler):
    def __init__(self, method: Method, call: Call) -> None:
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
        try:
            async for answer in self._method(message):
                self._call.send(answer)
        except CallError as error:
            self._call.end(error.code, error.text)
        except Exception:  # noqa: BLE001 - a call's guard
            _LOG.exception("a call failed")
            self._call.end(Code.UNKNOWN, "internal error")
        else:
            self._call.end()
