"""Open-loop clients: send each request at its time, whatever happens to the others.

TTFT is measured from the time at which a request was due, so that it includes any delay at the
client, which is also recorded separately. An answer is complete if its stream ends with the final
event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import aiohttp
import orjson

from laar.protocol import headers as names
from laar_lab.sim.endpoint.errors import DONE
from laar_lab.tokens import ASCII_PER_TOKEN
from laar_lab.workloads.overload import MODEL, Ask

HUNG = "hung"
"""`fault` of a request without a complete answer by its deadline."""

_FILLER = "A page of a document, or a turn of a conversation, that no cache has seen before. "
_SHED = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The outcome of a request, with times in real seconds.

    Args:
        ask: the request.
        status: HTTP status of the answer; None if there was none.
        reason: value of `x-laar-reason`.
        ttft_s: time from when it was due to the first token; None if there was none.
        late_s: delay between the time it was due and the time it was sent.
        fault: what is wrong with the answer; empty for a complete 200, and for a 429 or 503 with a
            valid `retry-after`.
    """

    ask: Ask
    status: int | None = None
    reason: str = ""
    ttft_s: float | None = None
    late_s: float
    fault: str = ""


async def send(
    url: str,
    asks: Sequence[Ask],
    *,
    time_scale: float,
    deadline_s: float,
    policy: str = "",
) -> list[Answered]:
    """Send every request at its time; return when all have ended or passed their deadlines.

    Args:
        url: URL of Envoy.
        asks: requests with times and objectives in the fleet's seconds.
        time_scale: real seconds per second of the fleet.
        deadline_s: real seconds allowed per request.
        policy: value of `x-laar-policy`; empty for the picker's default.
    """
    begins = time.monotonic()
    headers = {"content-type": "application/json"} | ({names.POLICY: policy} if policy else {})
    async with (
        aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session,
        asyncio.TaskGroup() as group,
    ):
        tasks = [
            group.create_task(
                _send(session, ask, begins + ask.at_s * time_scale, time_scale, deadline_s)
            )
            for ask in asks
        ]
    return [task.result() for task in tasks]


async def _send(
    session: aiohttp.ClientSession,
    ask: Ask,
    due: float,
    time_scale: float,
    deadline_s: float,
) -> Answered:
    await asyncio.sleep(due - time.monotonic())
    late_s = time.monotonic() - due
    headers = {
        names.TTFT_OBJECTIVE: str(round(ask.objective_s * time_scale * 1000)),
        names.FAIRNESS: ask.tenant,
    }
    try:
        async with (
            asyncio.timeout(deadline_s),
            session.post(
                "/v1/chat/completions", data=BytesIO(_body(ask)), headers=headers
            ) as response,
        ):
            reason = response.headers.get(names.REASON, "")
            if response.status != 200:
                text = await response.read()
                fault = _refusal_fault(response, text)
                return Answered(
                    ask=ask, status=response.status, reason=reason, late_s=late_s, fault=fault
                )
            first, tail = None, b""
            async for chunk in response.content.iter_any():
                first = time.monotonic() if first is None else first
                tail = (tail + chunk)[-len(DONE) :]
    except TimeoutError:
        return Answered(ask=ask, late_s=late_s, fault=HUNG)
    except aiohttp.ClientError as error:
        return Answered(ask=ask, late_s=late_s, fault=f"{type(error).__name__}: {error}")
    whole = first is not None and tail == DONE
    return Answered(
        ask=ask,
        status=200,
        reason=reason,
        ttft_s=first - due if first is not None else None,
        late_s=late_s,
        fault="" if whole else "the answer ended early",
    )


def _refusal_fault(response: aiohttp.ClientResponse, text: bytes) -> str:
    if response.status not in _SHED:
        return f"status {response.status}: {text[:200].decode(errors='replace')}"
    after = response.headers.get("retry-after", "")
    if not (after.isdecimal() and int(after) >= 1):
        return f"status {response.status} without a retry-after"
    return ""


def _body(ask: Ask) -> bytes:
    """Return a streamed chat of the request's prompt length, by the fleet's token count."""
    length = ASCII_PER_TOKEN * ask.prompt_tokens
    text = f"{ask.number}. "
    return orjson.dumps(
        {
            "model": MODEL,
            "messages": [
                {
                    "role": "user",
                    "content": (text + _FILLER * (length // len(_FILLER) + 1))[:length],
                }
            ],
            "max_tokens": ask.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
