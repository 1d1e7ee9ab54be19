"""Real traffic as workloads: coding agents and a chat service, from files not shipped with laar.

`agent-sessions.jsonl` comes from callanjfox/kv-cache-tester (Apache-2.0),
`conversation-trace.jsonl` from kvcache-ai/Mooncake (FAST'25, Apache-2.0), both reduced to times,
lengths and block ids (see `laar_lab.sessions` and `laar_lab.trace`); either may end in ``.gz``. The
requests are real; a seed sets the order of the sessions or the window of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import cycle, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from random import Random

from laar.errors import SettingError
from laar_lab.sessions import Recorded, read_sessions
from laar_lab.sim.fleet import Arrival, Site, Turn
from laar_lab.suite import fleets
from laar_lab.suite.case import Case, Closed, Open
from laar_lab.trace import TRACE_BLOCK_TOKENS, Lengths, lengths, timed

AGENTS = "agent-sessions.jsonl"
CONVERSATIONS = "conversation-trace.jsonl"

MAX_PROMPT_TOKENS = 120_000
"""Longest prompt; a session ends before a prompt that an engine with a context of 128K refuses."""

_OWN_BLOCK = 1
"""Index of the first block that differs between chats; the service's prompt comes before it."""

_MOST_SHORT_TOKENS = 60_000  # of a shortened prompt

MAX_PAUSE_S = 60.0
"""Maximum pause in seconds; a run of a few minutes would not reach the turn after a longer one."""


def _file(data: Path, name: str) -> Path:
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return path
    raise SettingError(f"--data {data}: there is no {name} or {name}.gz")


@lru_cache(maxsize=2)
def _sessions(path: Path) -> list[Recorded]:
    recorded = read_sessions(path)
    if not any(each.lines[0].lengths.prompt_tokens <= MAX_PROMPT_TOKENS for each in recorded):
        raise SettingError(f"{path}: no session begins with at most {MAX_PROMPT_TOKENS} tokens")
    return recorded


@dataclass(frozen=True, slots=True)
class _Agents:
    path: Path
    half: int | None = None

    def __call__(self, rng: Random) -> Iterator[tuple[str, Iterator[Turn]]]:
        """Yield the sessions in random order, repeatedly."""
        order = list(_sessions(self.path)[self.half :: 1 if self.half is None else 2])
        lap = 0
        while True:
            rng.shuffle(order)
            for each in order:
                again = replace(each, salt=each.salt + (lap << 32))
                yield f"{each.name}/{lap}", _fitting(again.turns(max_pause_s=MAX_PAUSE_S))
            lap += 1


def _fitting(turns: Iterable[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if turn.prompt.prompt_tokens > MAX_PROMPT_TOKENS:
            return
        yield turn


@lru_cache(maxsize=2)
def _trace(path: Path) -> list[tuple[float, Lengths]]:
    found = []
    for where, entry, at_ms in timed(path):
        line = lengths(entry, where)
        if line.prompt_tokens <= MAX_PROMPT_TOKENS:
            found.append((at_ms / 1e3, line))
    if not found:
        raise SettingError(f"{path}: no request of at most {MAX_PROMPT_TOKENS} tokens")
    # The trace's clock moves in steps of seconds. Requests of a step are spread over it: at one
    # instant, each short prompt would overtake the uploads of all longer ones.
    steps = [list(same) for _, same in groupby(found, key=itemgetter(0))]
    for same, following in pairwise(steps):
        (first_s, _), (next_s, _) = same[0], following[0]
        for number, (_, line) in enumerate(same):
            same[number] = first_s + (next_s - first_s) * number / len(same), line
    return [request for same in steps for request in same]


@dataclass(frozen=True, slots=True)
class _Window:
    path: Path
    speed: float

    def __call__(self, rng: Random, duration_s: float) -> Iterator[Arrival]:
        """Yield `duration_s` seconds of the trace, sped up, starting at a random time."""
        lines = _trace(self.path)
        span_s = duration_s * self.speed
        first_s, last_s = lines[0][0], lines[-1][0]
        if last_s - first_s < span_s:
            raise SettingError(f"{self.path}: shorter than {span_s:.0f} s")
        start_s = rng.uniform(first_s, last_s - span_s)
        for at_s, line in lines:
            if start_s <= at_s < start_s + span_s:
                due_s = (at_s - start_s) / self.speed
                yield Arrival(at_s=due_s, prompt=line.prompt(TRACE_BLOCK_TOKENS))


def agents(data: Path, half: int | None = None) -> _Agents:
    """Return a function that draws sessions of coding agents; `half` is 0 or 1, None for all.

    Raises:
        SettingError: the file is missing.
    """
    return _Agents(_file(data, AGENTS), half)


def chats(data: Path, speed: float) -> _Window:
    """Return a function that draws a window of the chat trace, at a multiple of its speed.

    Raises:
        SettingError: the file is missing.
    """
    return _Window(_file(data, CONVERSATIONS), speed)


def short_agents(data: Path) -> Callable[[Random], Iterator[tuple[str, Iterator[Turn]]]]:
    """Return a function that draws sessions shortened as for the race in docs/race/gpu.md.

    Lengths are divided by 4, answers by 2 and pauses by 12. Each session starts at a random
    request, at least 20 before its end.

    Raises:
        SettingError: the file is missing.
    """
    path = _file(data, AGENTS)

    def drawn(rng: Random) -> Iterator[tuple[str, Iterator[Turn]]]:
        order = list(_shortened(path))
        rng.shuffle(order)
        for each in cycle(order):
            yield each.name, each.turns(speed=12.0, max_pause_s=30.0 / 12.0)

    return drawn


@lru_cache(maxsize=1)
def _shortened(path: Path) -> tuple[Recorded, ...]:
    rng, shortened = Random(1), list[Recorded]()
    for each in sorted(_sessions(path), key=lambda recorded: recorded.name):
        lines = [line.divided(4, 2) for line in each.lines]
        lines = [line for line in lines if line.lengths.prompt_tokens <= _MOST_SHORT_TOKENS]
        if len(lines) >= 8:
            start = rng.randrange(max(1, len(lines) - 20))
            of = replace(each, block_tokens=each.block_tokens // 4, lines=tuple(lines[start:]))
            shortened.append(of)
    return tuple(shortened)


def day_chats(data: Path, requests_per_s: float, rng: Random, until_s: float) -> Iterator[Arrival]:
    """Yield the chat trace at a given request rate, repeatedly, starting at a random request.

    Requests that share a prefix beyond the service's prompt form a session.

    Raises:
        SettingError: the file is missing, or all its requests have the same time.
    """
    path = _file(data, CONVERSATIONS)
    lines = _trace(path)
    span_s = lines[-1][0] - lines[0][0]
    if not span_s:
        raise SettingError(f"{path}: all requests have the same `timestamp`")
    pace = len(lines) / span_s / requests_per_s
    at = rng.randrange(len(lines))
    due_s, lap = 0.0, 0
    while due_s < until_s:
        line = lines[at][1]
        yield Arrival(
            at_s=due_s,
            prompt=line.prompt(TRACE_BLOCK_TOKENS, lap << 32),
            session=f"{lap}-{line.ids[min(_OWN_BLOCK, len(line.ids) - 1)]}" if line.ids else "",
        )
        at += 1
        if at == len(lines):
            at, lap = 0, lap + 1
        else:
            due_s += (lines[at][0] - lines[at - 1][0]) * pace


_A100 = partial(fleets.of_one, "llama-3-8b-a100")


def agent_cases(data: Path) -> tuple[Case, ...]:
    """Return closed-loop workloads of coding agents' sessions.

    Raises:
        SettingError: the file is missing.
    """
    draw = agents(data)
    worlds: list[tuple[str, str, Callable[[], list[Site]], int]] = [
        ("agents", "on 8 A100", partial(_A100, 8), 40),
        (
            "agents-parallel",
            "on 8 engines that prefill side by side, ample caches",
            partial(fleets.parallel, kv_tokens=2_000_000),
            40,
        ),
        (
            "agents-parallel-short",
            "on the same with short caches",
            partial(fleets.parallel, kv_tokens=600_000),
            56,
        ),
        ("agents-short", "on 8 A100s with short caches", partial(_A100, 8, kv_tokens=250_000), 40),
    ]
    return tuple(
        Case(
            name=name,
            about=f"real sessions of coding agents {where}",
            role="judge",
            fleet=fleet,
            load=Closed(draw=draw, at_once=at_once, ramp_s=60.0),
            minutes=8.0,
        )
        for name, where, fleet, at_once in worlds
    )


def conversation_cases(data: Path) -> tuple[Case, ...]:
    """Return workloads of a chat service's requests as an open loop.

    Raises:
        SettingError: the file is missing.
    """
    path = _file(data, CONVERSATIONS)
    worlds: list[tuple[str, str, Callable[[], list[Site]], float, int]] = [
        ("conversations", "on 8 A100", partial(_A100, 8), 1.0, 1024),
        (
            "conversations-overload",
            "on 4 A100s, which are too few; at most 64 requests are in flight",
            partial(_A100, 4),
            1.0,
            64,
        ),
        (
            "conversations-parallel",
            "on 8 engines that prefill side by side",
            fleets.parallel,
            2.6,
            1024,
        ),
        (
            "conversations-parallel-mixed",
            "on the same, half of them 2.5 times slower",
            partial(fleets.parallel, 4, 4),
            1.7,
            1024,
        ),
        (
            "conversations-short",
            "on 8 A100s with short caches, which have room for few long prompts",
            partial(_A100, 8, kv_tokens=120_000),
            0.9,
            1024,
        ),
        (
            "conversations-larger",
            "on 8 A100s with a model of 14B",
            partial(fleets.of_one, "qwen2.5-14b-a100", 8),
            0.45,
            1024,
        ),
    ]
    return tuple(
        Case(
            name=name,
            about=f"a real chat trace {where}",
            role="judge",
            fleet=fleet,
            load=Open(draw=_Window(path, speed), cap=cap, from_dispatch=cap < 1024),
            minutes=8.0 / speed,
        )
        for name, where, fleet, speed, cap in worlds
    )
