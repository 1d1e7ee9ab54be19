"""Clients of a race, which send real bodies and read real streams.

Bodies represent the lab's prompts: each block of 16 tokens becomes a text made from its id, so
prompts share text wherever they share blocks. Every text of a turn begins with a mark of that
turn, so nothing that earlier turns left in a cache can be used. Times are in the fleet's seconds,
from when a request was due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

import aiohttp
import orjson

from laar_lab.race.engines import Engines
from laar_lab.race.traffic import Sessions
from laar_lab.race.words import text
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Prompt

SESSION_HEADER = "x-session-id"

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request as its client saw it, in the fleet's seconds.

    Args:
        number: position in the turn's order of sending.
        session: the session it belongs to; empty if it belongs to none.
        due_s: when it was due, from the start of the turn.
        late_s: how long after `due_s` it was sent.
        ttft_s: time from when it was due to the first token; None if there was none.
        answer_s: time from when it was due to the end of the answer; None if it was incomplete.
        status: HTTP status; None if there was none.
        fault: why it failed; empty for a complete answer.
        prompt_tokens: prompt tokens as counted by the engine.
        completion_tokens: tokens of the answer as counted by the engine.
        cached_tokens: prompt tokens found in the engine's cache; None if not reported.
    """

    number: int
    session: str
    due_s: float
    late_s: float
    ttft_s: float | None = None
    answer_s: float | None = None
    status: int | None = None
    fault: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def broke_off(self) -> bool:
        """Whether it failed while an answer was being sent, which no router can repeat."""
        begun = self.ttft_s is not None or self.fault.startswith("ClientPayloadError")
        return bool(self.fault) and begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How requests are sent.

    Args:
        engines: the model, its characters per token and its context length.
        mark: text at the beginning of every prompt.
        time_scale: real seconds per second of the fleet.
        deadline_s: real seconds after which an answer has failed.
        in_flight: limit on concurrent requests. Others wait at the client; the times include this.
        most_tokens: limit on prompt plus answer, in tokens; longer requests are skipped.
        names_programs: whether bodies name their session as `program_id`.
    """

    engines: Engines
    mark: str
    time_scale: float
    deadline_s: float
    in_flight: int
    most_tokens: int
    names_programs: bool = False

    def body(self, prompt: Prompt, session: str) -> bytes:
        """Return the request body for a prompt: a streamed chat with a fixed answer length."""
        per_block = BLOCK_TOKENS * self.engines.chars_per_token
        full = prompt.prompt_tokens // BLOCK_TOKENS
        parts = [f"{self.mark}\n"]
        for index, block in enumerate(prompt.blocks[:full]):
            parts.append(text(block, round((index + 1) * per_block) - round(index * per_block)))
        rest = prompt.prompt_tokens - BLOCK_TOKENS * min(full, len(prompt.blocks))
        own = prompt.blocks[min(full, len(prompt.blocks) - 1)] if prompt.blocks else 0
        parts.append(text(own, round(rest * self.engines.chars_per_token)))
        asked = {
            "model": self.engines.model,
            "messages": [{"role": "user", "content": "".join(parts)}],
            "max_tokens": prompt.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.names_programs and session:
            asked["program_id"] = session
        return orjson.dumps(asked)


@dataclass(slots=True)
class _Answer:
    """The part of a streamed answer that has been read so far."""

    status: int | None = None
    first_s: float | None = None
    usage: bytes = b""
    tail: bytes = b""
    error: bytes = b""


class Clients:
    """The clients of one turn.

    Args:
        session: HTTP session with the router as its base URL.
        asking: how requests are sent.
    """

    def __init__(self, session: aiohttp.ClientSession, asking: Asking) -> None:
        self._session = session
        self._asking = asking
        self._scale = asking.time_scale
        self._free = asyncio.Semaphore(asking.in_flight)
        self._born_s = time.monotonic()
        self._sent = 0
        self.rows: list[Row] = []
        self.left_out = 0

    def now(self) -> float:
        """Return the time since the turn began, in the fleet's seconds."""
        return (time.monotonic() - self._born_s) / self._scale

    async def until(self, moment_s: float) -> None:
        """Wait until this many seconds after the turn began."""
        await asyncio.sleep(max(0.0, (moment_s - self.now()) * self._scale))

    async def send_open(self, arrivals: Iterable[Arrival]) -> None:
        """Send each request at its time, whatever happens to the others."""
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                await self.until(arrival.at_s)
                group.create_task(self.ask(arrival.prompt, arrival.at_s, arrival.session))

    async def hold(self, sessions: Sessions, until_s: float) -> None:
        """Send one session after another, each request after the previous answer."""
        for name, turns in sessions:
            asked_s = self.now()
            for turn in turns:
                due_s = max(self.now() + turn.after_answer_s, asked_s + turn.after_request_s)
                if due_s >= until_s:
                    return
                await self.until(due_s)
                asked_s = due_s
                await self.ask(turn.prompt, due_s, name)

    async def ask(self, prompt: Prompt, due_s: float, session: str) -> None:
        """Send a request and read its answer to the end."""
        if prompt.prompt_tokens + prompt.output_tokens > self._asking.most_tokens:
            self.left_out += 1
            return
        self._sent += 1
        number, answer, fault = self._sent, _Answer(), ""
        async with self._free:
            late_s = self.now() - due_s
            try:
                async with asyncio.timeout(self._asking.deadline_s):
                    await self._read(prompt, session, answer)
            except TimeoutError:
                fault = f"no complete answer within {self._asking.deadline_s:g} s"
            except aiohttp.ClientError as error:
                fault = f"{type(error).__name__}: {error}"[:200]
        ended_s = self.now()
        fault = fault or _fault(answer)
        self.rows.append(
            Row(
                number=number,
                session=session,
                due_s=due_s,
                late_s=late_s,
                ttft_s=None if answer.first_s is None else answer.first_s - due_s,
                answer_s=None if fault else ended_s - due_s,
                status=answer.status,
                fault=fault,
                **_counts(answer.usage),
            )
        )

    async def _read(self, prompt: Prompt, session: str, into: _Answer) -> None:
        headers = {SESSION_HEADER: session} if session else {}
        body = BytesIO(self._asking.body(prompt, session))
        async with self._session.post("/v1/chat/completions", data=body, headers=headers) as answer:
            into.status = answer.status
            if answer.status != 200:
                into.error = await answer.content.read(200)
                return
            async for line in answer.content:
                if not line.startswith(_DATA):
                    continue
                if into.first_s is None:
                    into.first_s = self.now()
                if not line.startswith(_DONE):
                    into.usage = line
                into.tail = line


def _fault(answer: _Answer) -> str:
    if answer.status != 200:
        return f"status {answer.status}: {answer.error.decode(errors='replace')}"
    if not answer.tail.startswith(_DONE):
        return "the answer ended early"
    return ""


def _counts(line: bytes) -> dict[str, int]:
    """Return the engine's token counts from the last event before the end."""
    try:
        usage = orjson.loads(line.removeprefix(_DATA) or b"{}").get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        return {
            "prompt_tokens": int(usage.get("prompt_tokens") or 0),
            "completion_tokens": int(usage.get("completion_tokens") or 0),
            **({} if cached is None else {"cached_tokens": int(cached)}),
        }
    except (ValueError, TypeError, AttributeError):
        return {}
