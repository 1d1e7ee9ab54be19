"""The traffic of a race: a user's file, or generated chats and agents.

Requests are sent at their times, or a fixed number of sessions is kept open. Each open session has
its own client, so the router's speed does not change who sends what.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from laar_lab.sessions import has_sessions, read_sessions
from laar_lab.sim.fleet import Arrival, Turn
from laar_lab.trace import TRACE_BLOCK_TOKENS, read_trace
from laar_lab.workloads.sessions import GORGO_CHATS, ChatShape, chats
from laar_lab.workloads.shared_prompts import AgentShape, agents

GENERATED = ("chats", "agents")
Sessions = Iterable[tuple[str, Iterable[Turn]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic of one repetition, the same for each router.

    Args:
        about: description for the reader.
        arrivals: requests at their times, by seed; None if sessions are held open.
        sessions: sessions of one client, by seed and client.
        clients: number of concurrent sessions.
    """

    about: str
    arrivals: Callable[[int], Iterable[Arrival]] | None = None
    sessions: Callable[[int, int], Sessions] | None = None
    clients: int = 0


def generated(
    kind: str, *, most_tokens: int, seconds: float, rate_per_s: float, clients: int
) -> Traffic:
    """Return generated traffic: chats as an open loop, or coding agents as a closed one.

    Args:
        kind: one of `GENERATED`.
        most_tokens: limit on prompt plus answer.
        seconds: length of the traffic.
        rate_per_s: chat requests per second.
        clients: number of concurrent agent sessions.
    """
    if kind == "chats":
        shape = _shorter(GORGO_CHATS, most_tokens)
        shape = replace(shape, requests_per_s=rate_per_s)
        return Traffic(
            about=f"generated chats, {rate_per_s:g} requests a second",
            arrivals=lambda seed: chats(shape, random.Random(seed), seconds),
        )
    output = min(300, most_tokens // 8)
    loops = AgentShape(
        system_tokens=min(4096, most_tokens // 6),
        max_growth_tokens=most_tokens // 4,
        max_prompt_tokens=min(48_000, most_tokens - output),
        max_output_tokens=output,
    )
    return Traffic(
        about=f"generated coding agents, {clients} sessions at once",
        sessions=lambda seed, client: agents(loops, random.Random(f"{seed}-{client}"), client),
        clients=clients,
    )


def _shorter(shape: ChatShape, most_tokens: int) -> ChatShape:
    """Return the shape with all lengths scaled by one factor, which keeps the share that fits."""
    output = min(shape.max_output_tokens, most_tokens // 8)
    most = min(shape.max_prompt_tokens, most_tokens - output)
    share = most / shape.max_prompt_tokens

    def scaled(log: tuple[float, float]) -> tuple[float, float]:
        return log[0] + math.log(share), log[1]

    return replace(
        shape,
        first_log=scaled(shape.first_log),
        growth_log=scaled(shape.growth_log),
        template_tokens=round(shape.template_tokens * share),
        max_output_tokens=output,
        max_prompt_tokens=most,
    )


def recorded(
    path: Path,
    *,
    seconds: float,
    speed: float,
    clients: int,
    block_tokens: int = TRACE_BLOCK_TOKENS,
) -> Traffic:
    """Return a file's traffic: recorded sessions or a trace.

    Args:
        path: the file; its first line decides its kind.
        seconds: length of the traffic.
        speed: divisor of times and pauses.
        clients: number of concurrent recorded sessions.
        block_tokens: prompt tokens per entry of `hash_ids`.

    Raises:
        SettingError: the file can't be read, or a line is invalid.
    """
    if not has_sessions(path):
        return Traffic(
            about=f"{path.name}, a trace at {speed:g} times its speed",
            arrivals=_parts(
                lambda: read_trace(path, time_scale=1.0 / speed, block_tokens=block_tokens),
                seconds,
            ),
        )
    of_file = read_sessions(path, block_tokens=block_tokens)

    def mine(seed: int, client: int) -> Iterator[tuple[str, Iterable[Turn]]]:
        order = list(of_file)
        random.Random(seed).shuffle(order)
        return ((session.name, session.turns(speed=speed)) for session in order[client::clients])

    return Traffic(
        about=f"{path.name}, {clients} of {len(of_file)} recorded sessions at once",
        sessions=mine,
        clients=clients,
    )


def _parts(
    read: Callable[[], Iterable[Arrival]], seconds: float
) -> Callable[[int], Iterator[Arrival]]:
    """Return a function that yields a part of the file for a seed: `seconds` long, from 0 s on.

    Successive seeds get successive parts, so that repetitions have different traffic. The
    file is read again for each part: it may be larger than memory.
    """
    ends_s = 0.0
    for arrival in read():
        ends_s = arrival.at_s
    parts = max(1, int(ends_s // seconds))

    def part(seed: int) -> Iterator[Arrival]:
        from_s = seed % parts * seconds
        for arrival in read():
            if arrival.at_s >= from_s + seconds:
                return
            if arrival.at_s >= from_s:
                yield replace(arrival, at_s=arrival.at_s - from_s)

    return part
