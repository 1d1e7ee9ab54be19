"""Sends what was recorded to an OpenTelemetry collector: OTLP/HTTP in protobuf, off the path.

The protocol's messages come from OpenTelemetry; the SDK around them does not. Its spans take
several times as long to make and encode, under the interpreter's one lock whatever the thread; its
part for logs is not stable; it does not tell what it dropped, and logs each failure. What it would
save is this file.

The path only appends to a bounded queue. A batch leaves the queue when the collector took it, or
said that it never will; until then it is offered again, at growing intervals, and what finds the
queue full is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

import aiohttp
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.resource.v1 import resource_pb2

__all__ = ["LOGS", "TRACES", "Sender", "resource", "tell"]

INTERVAL_S = 1.0
MAX_INTERVAL_S = 30.0
"""Between two attempts while the collector takes nothing; its own ``retry-after`` may say less."""

BATCH = 200
"""Records in one request: a millisecond of the loop to put together."""

LAST_S = 1.0
"""At the end, for what waits still; a collector that is down must not hold a picker that leaves."""

_AGAIN = frozenset({429, 502, 503, 504})  # by the protocol; any other refusal is for good
_URL = "is this the URL of the collector's OTLP/HTTP receiver?"
_REMEDY = dict.fromkeys((401, 403), "give its token in otlp.headers_file")
_ANSWER_BYTES = 64 << 10
_MAX_CHARS = 1024
"""Of one value: names that clients send have no limit of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What is sent, and the names of it in the protocol's messages.

    Args:
        setting: that holds the URL.
        request: type of a request: of resources, which hold scopes, which hold records.
        answer: type of its answer.
        fields: names of these three in it.
        rejected: name of the answer's count of records that were not taken.
    """

    setting: str
    request: Callable[[], Any]
    answer: Callable[[], Any]
    fields: tuple[str, str, str]
    rejected: str


TRACES = Signal(
    setting="otlp.traces",
    request=trace_service.ExportTraceServiceRequest,
    answer=trace_service.ExportTraceServiceResponse,
    fields=("resource_spans", "scope_spans", "spans"),
    rejected="rejected_spans",
)
LOGS = Signal(
    setting="otlp.logs",
    request=logs_service.ExportLogsServiceRequest,
    answer=logs_service.ExportLogsServiceResponse,
    fields=("resource_logs", "scope_logs", "log_records"),
    rejected="rejected_log_records",
)


class Sender:
    """Sends one signal's records to one URL.

    Args:
        url: of the collector.
        signal: what is sent.
        of: who sends it.
        headers: to send along.
        timeout_s: of one attempt.
        max_queued: records that wait at most.
        on_problem: told what is wrong, or None once it works again.
    """

    def __init__(
        self,
        url: str,
        signal: Signal,
        of: resource_pb2.Resource,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        max_queued: int,
        on_problem: Callable[[str | None], None],
    ) -> None:
        self._url = url
        self._signal = signal
        self._resource = of
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._max_queued = max_queued
        self._on_problem = on_problem
        self._queue: deque[bytes] = deque()
        self._interval_s = INTERVAL_S
        self.sent = 0
        self.dropped = 0

    def offer(self, make: Callable[[], bytes]) -> None:
        """Queues a record; where there is no room it is not even made."""
        if len(self._queue) >= self._max_queued:
            self.dropped += 1
        else:
            self._queue.append(make())

    async def run(self) -> None:
        """Sends until cancelled, then what is left."""
        async with aiohttp.ClientSession(timeout=self._timeout, headers=self._headers) as session:
            sending = None
            try:
                while True:
                    await asyncio.sleep(self._interval_s)
                    sending = asyncio.create_task(self._send_all(session))
                    await asyncio.shield(sending)
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_S):
                        if sending is not None and not sending.done():
                            await sending  # else its batch would be sent twice
                        await self._send_all(session)
                self.dropped += len(self._queue)
                self._queue.clear()

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        while self._queue:
            batch = list(islice(self._queue, BATCH))
            left, fault = await self._send(session, self._request(batch), len(batch))
            if not left:
                fault += "; what waits is sent later"
            self._on_problem(f"{self._signal.setting}: {self._url} {fault}" if fault else None)
            if not left:
                return
            for _ in batch:
                self._queue.popleft()

    async def _send(
        self, session: aiohttp.ClientSession, body: bytes, records: int
    ) -> tuple[bool, str]:
        """Offers a batch; whether that was the end of it, and what is wrong, if anything."""
        later_s = min(2 * self._interval_s, MAX_INTERVAL_S)
        try:
            async with session.post(self._url, data=body, allow_redirects=False) as answer:
                told = await answer.content.read(_ANSWER_BYTES)
                status, after = answer.status, answer.headers.get("retry-after", "")
        except (aiohttp.ClientError, OSError) as error:  # a time-out is one as well
            self._interval_s = later_s
            return False, f"can't be reached ({_why(error)})"
        if status in _AGAIN:
            asked_s = float(after) if after.isascii() and after.isdigit() else later_s
            self._interval_s = min(max(asked_s, INTERVAL_S), MAX_INTERVAL_S)
            return False, f"answers {status}"
        self._interval_s = INTERVAL_S
        if status // 100 != 2:
            self.dropped += records
            return True, f"answers {status}, and the records are lost; {_REMEDY.get(status, _URL)}"
        rejected = min(self._rejected(told), records)
        self.sent += records - rejected
        self.dropped += rejected
        return True, "takes a part only; its own log says why" if rejected else ""

    def _request(self, records: Sequence[bytes]) -> bytes:
        resources, scopes, name = self._signal.fields
        request = self._signal.request()
        scope = getattr(getattr(request, resources).add(resource=self._resource), scopes).add()
        scope.scope.name = "laar"
        into = getattr(scope, name)
        for record in records:
            into.add().MergeFromString(record)
        written: bytes = request.SerializeToString()
        return written

    def _rejected(self, told: bytes) -> int:
        answer = self._signal.answer()
        try:
            answer.MergeFromString(told)
        except Exception:  # noqa: BLE001 - prose, then; its error is protobuf's, not known here
            return 0
        return int(getattr(answer.partial_success, self._signal.rejected))


def _why(error: Exception) -> str:
    """In the same words each time: a problem that changes is told again."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.os_error.errno) if error.os_error.errno else "no such host"
    return type(error).__name__


def resource(service_name: str, version: str, instance: str) -> resource_pb2.Resource:
    """Who sends; attributes of the deployment come from OTEL_RESOURCE_ATTRIBUTES."""
    attributes: dict[str, object] = {}
    for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            attributes[name.strip()] = unquote(value.strip())
    own = {
        "service.name": service_name,
        "service.version": version,
        "service.instance.id": instance,
    }
    made = resource_pb2.Resource()
    tell(made, attributes | own)
    return made


def tell(of: Any, attributes: Mapping[str, object]) -> None:
    """Adds attributes to a message; those that say nothing (None, empty, NaN) are left out.

    Field by field: to make messages and copy them takes three times as long.
    """
    pairs = of.attributes
    for name, value in attributes.items():
        if value is None or value == "" or value == () or value != value:
            continue
        pair = pairs.add()
        pair.key = name
        _set(pair.value, value)


def _set(message: Any, value: object) -> None:
    kind = type(value)
    if kind is float:
        message.double_value = value
    elif kind is bool:
        message.bool_value = value
    elif kind is int:
        message.int_value = value
    elif isinstance(value, str):
        message.string_value = value[:_MAX_CHARS]
    else:
        assert isinstance(value, Sequence)
        values = message.array_value.values
        for one in value:
            _set(values.add(), one)
