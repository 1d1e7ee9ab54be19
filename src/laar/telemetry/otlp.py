"""Tasks that the OpenTelemetry SDK leaves to laar: counting, reporting faults, and a timely end.

All else is the SDK's: the bounded queue, the thread that encodes and sends batches, retries, and
the environment's ``OTEL_*``. Where the queue is full its oldest record is lost, without a count.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

LAST_S = 1.0
"""At the end, for what waits still; a collector that is down must not hold a picker that leaves."""

_POLL_S = 0.01
_REMEDY = dict.fromkeys((401, 403), "; give its token in OTEL_EXPORTER_OTLP_HEADERS")
_REMEDY |= dict.fromkeys((301, 302, 307, 308, 404, 405), "; is this the URL for OTLP over HTTP?")


class Sender:
    """An SDK exporter with counts, whose faults are reported.

    Args:
        exporter: makes it, of the URL and a session.
        url: URL of the collector; None for the environment's.
        on_problem: gets the fault of an attempt, or None after a good one.
    """

    def __init__(
        self,
        exporter: Callable[..., Any],
        url: str | None,
        *,
        on_problem: Callable[[str | None], None],
    ) -> None:
        self._on_problem = on_problem
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session = _Session(self._attempted)
        self._exporter = exporter(endpoint=url, session=self._session)
        self._processor: Any = None
        self.made = 0
        self.sent = 0
        self.failed = 0

    def export(self, batch: Sequence[Any]) -> object:
        """Send a batch; the SDK's thread calls this."""
        self._session.accepted = False
        result: object = self._exporter.export(batch)
        if self._session.accepted:
            self.sent += len(batch)
        else:
            self.failed += len(batch)
        return result

    def shutdown(self) -> None:
        """End retries; batches offered from now on fail."""
        self._exporter.shutdown()

    def begin(self, processor: Callable[[Any], Any]) -> Any:
        """Start the thread; return the processor that fills its queue.

        Args:
            processor: makes that, of this exporter.

        Raises:
            ValueError: the environment gives it numbers that can't be.
        """
        self._loop = asyncio.get_running_loop()
        self._processor = processor(self)
        return self._processor

    def end(self) -> None:
        """End what `begin` started, when nothing was offered yet."""
        if self._processor is not None:
            self._processor.shutdown()

    async def run(self) -> None:
        """Wait until cancelled, then a second at most for unsent batches."""
        try:
            await asyncio.Event().wait()
        finally:
            # Not in the loop's own threads: a picker that ends waits for these.
            ending = threading.Thread(target=self._processor.shutdown, daemon=True)
            ending.start()
            end = time.monotonic() + LAST_S
            while ending.is_alive() and time.monotonic() < end:  # noqa: ASYNC110 - a thread's end
                await asyncio.sleep(_POLL_S)
            if ending.is_alive():
                self.shutdown()

    def _attempted(self, fault: str | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_problem, fault)


class _Session(requests.Session):
    """Sees each attempt, since the SDK does nothing but log it, and takes a redirect for success.

    Args:
        on_attempt: gets the fault of an attempt, or None after a good one.
    """

    def __init__(self, on_attempt: Callable[[str | None], None]) -> None:
        super().__init__()
        self._on_attempt = on_attempt
        self.accepted = False

    def request(self, method: str, url: Any, *args: Any, **more: Any) -> Any:
        where = urlsplit(url)  # an environment's may hold secrets
        shown = f"{where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"
        try:
            answer = super().request(method, url, *args, **more)
        except requests.RequestException as error:
            self._on_attempt(f"{shown} can't be reached ({_why(error)})")
            raise
        status = answer.status_code
        self.accepted = status // 100 == 2
        fault = f"{shown} answers {status}{_REMEDY.get(status, '')}"
        self._on_attempt(None if self.accepted else fault)
        return answer


def _why(error: BaseException) -> str:
    """Return the reason, always in the same words: a problem that changes is logged again."""
    if isinstance(error, requests.Timeout):
        return "timed out"
    while below := error.__cause__ or error.__context__:
        error = below
    return getattr(error, "strerror", None) or type(error).__name__


def resource(version: str) -> Resource:
    """Return the sender's resource, named by the environment or laar."""
    ours = {
        "service.name": "laar",
        "service.version": version,
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


def quiet() -> None:
    """Silence the SDK's lines for each batch and for each wrong header of a client."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
