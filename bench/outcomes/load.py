"""Chats and agents as HTTP: real streams of real bodies, timed from the moment they were due.

Bodies stand for the lab's prompts: each block of 16 tokens is a text made from its id, so prompts
share as much text as the simulated ones share blocks. Times are in the fleet's own seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

import aiohttp
import numpy as np
import orjson

from bench.outcomes.engines import MODEL
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Prompt, Turn
from laar_lab.tokens import ASCII_PER_TOKEN

DEADLINE_S = 60.0
"""Real seconds; a request without a whole answer by then has failed."""

_DONE = b"data: [DONE]"
_BLOCK_CHARS = BLOCK_TOKENS * ASCII_PER_TOKEN


@dataclass(slots=True)
class Outcome:
    """Latencies and outcomes that clients saw in one run."""

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    failed: int = 0

    @property
    def requests(self) -> int:
        """Number of requests, with those that failed."""
        return len(self.ttft_s) + self.failed

    def numbers(self) -> dict[str, float]:
        """Means and percentiles; NaN where nothing was answered."""
        ttft = np.array(self.ttft_s or [np.nan])
        e2e = np.array(self.e2e_s or [np.nan])
        return {
            "requests": self.requests,
            "TTFT mean s": float(ttft.mean()),
            "p50": float(np.percentile(ttft, 50)),
            "p95": float(np.percentile(ttft, 95)),
            "E2E mean s": float(e2e.mean()),
            "E2E p50": float(np.percentile(e2e, 50)),
            "E2E p95": float(np.percentile(e2e, 95)),
            "cached": self.cached_tokens / max(1, self.prompt_tokens),
            "failed %": 100.0 * self.failed / max(1, self.requests),
        }


class Client:
    """Sends prompts to one URL.

    Args:
        session: HTTP session, its base the router.
        time_scale: real seconds for one of the fleet's.
    """

    def __init__(self, session: aiohttp.ClientSession, time_scale: float) -> None:
        self._session = session
        self._scale = time_scale
        self._born_s = time.monotonic()
        self.outcome = Outcome()

    def now(self) -> float:
        """The fleet's seconds since the run began."""
        return (time.monotonic() - self._born_s) / self._scale

    async def until(self, moment_s: float) -> None:
        """Returns when that moment has come."""
        await asyncio.sleep(max(0.0, (moment_s - self.now()) * self._scale))

    async def ask(self, prompt: Prompt, due_s: float) -> None:
        """Sends a request and reads its answer to the end."""
        outcome, first_s, tail, usage = self.outcome, None, b"", b""
        try:
            async with (
                asyncio.timeout(DEADLINE_S),
                self._session.post("/v1/chat/completions", data=BytesIO(_body(prompt))) as answer,
            ):
                if answer.status == 200:
                    async for line in answer.content:
                        if not line.startswith(b"data: "):
                            continue
                        first_s = first_s or self.now()
                        tail, usage = line, tail if line.startswith(_DONE) else usage
        except (TimeoutError, aiohttp.ClientError):
            outcome.failed += 1
            return
        if first_s is None or not tail.startswith(_DONE):
            outcome.failed += 1
            return
        outcome.ttft_s.append(first_s - due_s)
        outcome.e2e_s.append(self.now() - due_s)
        self._count(usage)

    def _count(self, line: bytes) -> None:
        told = orjson.loads(line.removeprefix(b"data: ")).get("usage") or {}
        details = told.get("prompt_tokens_details") or {}
        self.outcome.prompt_tokens += told.get("prompt_tokens", 0)
        self.outcome.cached_tokens += details.get("cached_tokens") or 0


async def send_open(client: Client, arrivals: Iterable[Arrival]) -> None:
    """Sends each request at its time, whatever the fate of the others."""
    async with asyncio.TaskGroup() as group:
        for arrival in arrivals:
            await client.until(arrival.at_s)
            group.create_task(client.ask(arrival.prompt, arrival.at_s))


async def send_sessions(
    client: Client, sessions: Iterator[tuple[str, Iterable[Turn]]], *, at_once: int, until_s: float
) -> None:
    """Sends `at_once` sessions at a time, each request after the answer before it."""

    async def hold() -> None:
        while client.now() < until_s:
            _, turns = next(sessions)
            for turn in turns:
                due_s = client.now() + turn.after_answer_s
                if due_s > until_s:
                    return
                await client.until(due_s)
                await client.ask(turn.prompt, due_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(hold())


def _body(prompt: Prompt) -> bytes:
    full = prompt.prompt_tokens // BLOCK_TOKENS
    text = "".join((f"{block:016x}" * 6)[:_BLOCK_CHARS] for block in prompt.blocks[:full])
    rest = prompt.prompt_tokens % BLOCK_TOKENS * ASCII_PER_TOKEN
    return orjson.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": text + "." * rest}],
            "max_tokens": prompt.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
