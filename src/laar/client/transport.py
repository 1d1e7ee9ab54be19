"""Post chat completions. Any outcome becomes a `Reply`; only cancellation is raised."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

import aiohttp
import orjson

from laar.client.loop import Reply, Send
from laar.client.wire import MAX_ANSWER_BYTES, Completion, Deltas, NotACompletion, read_completion
from laar.errors import SettingError

_ERROR_CHARS = 300  # characters of an error's body: enough to identify it


def completions_url(base_url: str) -> str:
    """Return the chat completions URL for a base URL with or without ``/v1``.

    Raises:
        SettingError: it is not an http or https URL.
    """
    if not base_url.lower().startswith(("http://", "https://")):
        raise SettingError(f"{base_url}: not a URL; write http://{base_url.rpartition('//')[2]}")
    base = base_url.rstrip("/")
    return f"{base}/chat/completions" if base.endswith("/v1") else f"{base}/v1/chat/completions"


async def post(session: aiohttp.ClientSession, url: str, send: Send, timeout_s: float) -> Reply:
    """Post a chat completion, streamed if the body asks for it."""
    reading = _Reading()
    try:
        async with session.post(
            url,
            data=orjson.dumps(send.body),
            headers={"content-type": "application/json", **send.headers},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            reading.begins(answer.status, answer.headers)
            if answer.status != 200:
                return reading.refused(await answer.content.read(4 * _ERROR_CHARS))
            if not send.body.get("stream") or reading.is_json:
                return reading.complete(await _body(answer.content))
            async for part in answer.content.iter_any():
                reading.part(part)
            return reading.streamed()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, NotACompletion) as fault:
        return reading.broken(fault)


class _Reading:
    """Reads one answer as it arrives into a `Reply`."""

    def __init__(self) -> None:
        self._started = monotonic()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._ttft_s: float | None = None
        self._deltas = Deltas()

    def begins(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        self._headers = {name.lower(): value for name, value in headers.items()}

    @property
    def is_json(self) -> bool:
        """Whether the answer is a single JSON body: some endpoints ignore `stream`."""
        return self._headers.get("content-type", "").startswith("application/json")

    def part(self, data: bytes) -> None:
        """Read the next bytes of a stream."""
        if self._deltas.feed(data) and self._ttft_s is None:
            self._ttft_s = monotonic() - self._started

    def streamed(self) -> Reply:
        return self._reply(200, completion=self._deltas.completion())

    def complete(self, body: bytes) -> Reply:
        return self._reply(200, completion=read_completion(body))

    def refused(self, body: bytes) -> Reply:
        said = body.decode("utf-8", "replace")[:_ERROR_CHARS]
        return self._reply(self._status, error=f"HTTP {self._status}: {said}")

    def broken(self, fault: Exception) -> Reply:
        # A 200 without an answer counts as no answer, and may be retried.
        status = 0 if self._status == 200 else self._status
        return self._reply(status, error=str(fault) or type(fault).__name__)

    def _reply(
        self, status: int, *, completion: Completion | None = None, error: str | None = None
    ) -> Reply:
        return Reply(
            status=status,
            latency_s=monotonic() - self._started,
            ttft_s=self._ttft_s,
            headers=self._headers,
            completion=completion,
            error=error,
        )


async def _body(content: aiohttp.StreamReader) -> bytes:
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise NotACompletion(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
