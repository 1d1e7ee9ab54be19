"""Post chat completions. Any outcome becomes a `HttpReply`; only cancellation is raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
import orjson

from laar.client.wire import (
    MAX_ANSWER_BYTES,
    ChatCompletion,
    Deltas,
    NotACompletion,
    read_completion,
)
from laar.datalayer.fetching import read_capped
from laar.errors import SettingError

_ERROR_CHARS = 300  # number of characters of an error body to quote


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """The result of a request.

    Args:
        status: HTTP status; 0 if there was no answer.
        latency_s: seconds from sending the request to the last byte of the answer.
        ttft_s: seconds from sending to the first token of a streamed answer, including reasoning.
        headers: headers of the answer, names in lower case.
        completion: the answer; None if there is none, and `error` gives the reason.
    """

    status: int
    latency_s: float
    ttft_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    completion: ChatCompletion | None = None
    error: str | None = None


def completions_url(base_url: str) -> str:
    """Return the chat completions URL for a base URL with or without ``/v1``.

    Raise `SettingError` if it is not an http or https URL.
    """
    if not base_url.lower().startswith(("http://", "https://")):
        raise SettingError(f"{base_url}: not a URL; write http://{base_url.rpartition('//')[2]}")
    base = base_url.rstrip("/")
    return f"{base}/chat/completions" if base.endswith("/v1") else f"{base}/v1/chat/completions"


async def post(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, object],
    headers: Mapping[str, str],
    timeout_s: float,
) -> HttpReply:
    """Post a chat completion, streamed if the body asks for it."""
    started = monotonic()
    status, received, ttft_s, completion, error = 0, dict[str, str](), None, None, None
    try:
        async with session.post(
            url,
            data=orjson.dumps(body),
            headers={"content-type": "application/json", **headers},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            status = answer.status
            received = {name.lower(): value for name, value in answer.headers.items()}
            # Some endpoints ignore `stream`.
            is_json = received.get("content-type", "").startswith("application/json")
            if status != 200:
                said = await answer.content.read(4 * _ERROR_CHARS)
                error = f"HTTP {status}: {said.decode('utf-8', 'replace')[:_ERROR_CHARS]}"
            elif is_json or not body.get("stream"):
                completion = read_completion(await read_capped(answer.content, MAX_ANSWER_BYTES))
            else:
                deltas = Deltas()
                async for part in answer.content.iter_any():
                    if deltas.feed(part) and ttft_s is None:
                        ttft_s = monotonic() - started
                completion = deltas.completion()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, NotACompletion) as fault:
        # A 200 without a completion counts as no answer and may be retried.
        status = 0 if status == 200 else status
        error = str(fault) or type(fault).__name__
    return HttpReply(
        status=status,
        latency_s=monotonic() - started,
        ttft_s=ttft_s,
        headers=received,
        completion=completion,
        error=error,
    )
