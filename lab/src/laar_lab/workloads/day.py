"""A day of a fleet's traffic: chats, coding agents, questions about documents, nightly batch jobs.

Each hour of the day is represented by a minute at that hour's rate, so caches, sessions and
restarts have their real speed while the day passes faster. A chat of six minutes therefore goes
through the rates of six hours. The hour sets the share of chats that are active: each chat has a
random number, and is active while the number is below the share. Agents begin as a Poisson
process.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from laar_lab.sim.fleet import Arrival, Turn
from laar_lab.workloads.sessions import GORGO_CHATS, chats
from laar_lab.workloads.shared_prompts import (
    AgentShape,
    BatchShape,
    Questions,
    agents,
    batches,
    questions,
)

HOURS = 24
KINDS = ("chat", "agent", "document", "batch")

Curve = tuple[int, ...]
"""Rate by hour, in percent of the busiest hour's."""

_EVENING: Curve = (
    *(35, 25, 20, 20, 20, 25, 35, 50, 70, 85, 95, 100),
    *(100, 95, 95, 95, 90, 90, 90, 95, 100, 95, 75, 50),
)
_OFFICE: Curve = (
    *(5, 5, 5, 5, 5, 10, 20, 40, 75, 95, 100, 100),
    *(80, 90, 100, 100, 100, 85, 60, 40, 30, 20, 15, 10),
)
_NIGHT: Curve = (100,) * 6 + (0,) * 18

_CHAT = replace(GORGO_CHATS, requests_per_s=4.0, output_log=(5.0, 0.7), max_output_tokens=800)
_AGENT, _AGENTS_PER_S = AgentShape(mean_turns=15.0), 0.22
_DOCUMENT = Questions(requests_per_s=3.0, texts=300, text_log=(9.0, 0.5))
_BATCH = BatchShape(every_s=12.0, over_s=2.0, background=Questions(requests_per_s=1e-6))
"""The traffic; rates are those of the busiest hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The constants of the traffic.

    Args:
        hour_s: seconds that represent an hour.
        only_hour: repeat this hour instead of the day; None for the day.
        hours: number of hours, not counting the initial hour, which fills the caches.
    """

    hour_s: float = 60.0
    only_hour: int | None = None
    hours: int = HOURS

    @property
    def ends_s(self) -> float:
        """The time after which nothing new begins, including the initial hour."""
        return self.hour_s * (self.hours + 1)

    def hour(self, at_s: float) -> int:
        """Return the hour of the day; negative for the initial hour, which is not counted."""
        return int(at_s // self.hour_s) - 1

    def share(self, curve: Curve, at_s: float) -> float:
        """Return the rate as a share of the busiest hour's."""
        hour = max(0, self.hour(at_s)) if self.only_hour is None else self.only_hour
        return curve[min(hour, HOURS - 1)] / 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A session or a lone request; each turn waits for the previous answer.

    Args:
        at_s: when it begins.
        kind: one of `KINDS`.
        session: name of the session; empty if there is none.
        turns: its requests.
    """

    at_s: float
    kind: str
    session: str
    turns: Iterator[Turn]


def visits(day: Day, rng: random.Random) -> Iterator[Visit]:
    """Yield all visits in chronological order."""
    parts = [random.Random(rng.getrandbits(64)) for _ in range(4)]
    return heapq.merge(
        _open(day, "chat", _EVENING, chats(_CHAT, parts[0], day.ends_s)),
        _begun(day, parts[1]),
        _open(day, "document", _OFFICE, questions(_DOCUMENT, parts[2], day.ends_s)),
        _open(day, "batch", _NIGHT, batches(_BATCH, parts[3], day.ends_s)),
        key=lambda visit: visit.at_s,
    )


def _open(day: Day, kind: str, curve: Curve, arrivals: Iterable[Arrival]) -> Iterator[Visit]:
    """Yield the arrivals whose session is active when they arrive."""
    for number, arrival in enumerate(arrivals):
        drawn = xxhash.xxh3_64_intdigest((arrival.session or f"{kind}-{number}").encode())
        if drawn % 10_000 < 10_000 * day.share(curve, arrival.at_s):
            yield Visit(
                at_s=arrival.at_s,
                kind=kind,
                session=arrival.session,
                turns=_apart(kind, [Turn(prompt=arrival.prompt)]),
            )


def _begun(day: Day, rng: random.Random) -> Iterator[Visit]:
    drawn = random.Random(rng.getrandbits(64))
    at_s = 0.0
    for name, turns in agents(_AGENT, drawn):
        at_s += rng.expovariate(_AGENTS_PER_S)
        while rng.random() >= day.share(_OFFICE, at_s):
            at_s += rng.expovariate(_AGENTS_PER_S)
        if at_s >= day.ends_s:
            return
        yield Visit(at_s=at_s, kind="agent", session=name, turns=_apart("agent", turns))


def _apart(kind: str, turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield the prompts with ids offset by kind, since each kind numbers its texts from 1."""
    salt = np.uint64(xxhash.xxh3_64_intdigest(kind.encode()))
    for turn in turns:
        blocks = array("Q")
        blocks.frombytes((np.frombuffer(turn.prompt.blocks, np.uint64) + salt).tobytes())
        yield replace(turn, prompt=replace(turn.prompt, blocks=blocks))
