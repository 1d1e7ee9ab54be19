"""laar's own decision log as a trace: the traffic that a picker saw, sent again.

What the log tells of a request is kept: when it was decided, its length (the engine's count where
its answer was read, else the estimate for the endpoint that was picked), the name it asked for, its
language, length bucket and task, the models that had been tried, and each model's P(correct) as it
was believed then. So a policy that prices accuracy decides on the numbers the picker had.

What is lost, since a log holds nothing of any prompt:

- Prefixes and sessions are unknown. Each prompt shares nothing with another, so caches and the
  policies that follow them are of no use; beliefs about cached tokens can't be replayed.
- Most answers' lengths are not known (`bodies.sample_answers`). Those have the length of one of the
  last known ones, by chance; before the first, `UNKNOWN_ANSWER_TOKENS`.
- Opaque requests have no length, and are left out. Refused ones were never decided on.
- A name that no endpoint of the new fleet serves, an alias as well, stands for all its models. One
  the log has no probability of has the mean of the others'.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop, heappop
from itertools import count
from pathlib import Path

import numpy as np

from laar.core.interfaces import Assessment, Cell
from laar.core.request import Request
from laar.errors import SettingError
from laar.lab.fleet import BLOCK_TOKENS, Arrival, MeasuredAssessor, Prompt, Site, spread
from laar.lab.trace import MAX_TOKENS, Entry, entries, number, whole

__all__ = ["LoggedAssessor", "LoggedRequest", "is_decision_log", "read_decisions"]

MAX_REORDERED = 1 << 15
"""Lines come as requests ended; one is put back before so many others, at a kilobyte each. One that
took longer than all these is sent late."""

UNKNOWN_ANSWER_TOKENS = 128
"""Stand-in while no answer's length is known."""

_KEPT_ANSWERS = 1024
_BLOCKS_EACH = -(-MAX_TOKENS // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One decision of the log.

    Args:
        arrival: what is sent, and when.
        cell: what it was priced by.
        probability: P(correct) by model, as believed then, given the models already tried.
    """

    arrival: Arrival
    cell: Cell
    probability: Mapping[str, float]


def is_decision_log(path: Path) -> bool:
    """Whether the first line is a decision.

    Raises:
        SettingError: it can't be read, or the line is not a JSON object.
    """
    return any("candidates" in entry for entry, _ in _first(path))


def _first(path: Path) -> Iterator[tuple[Entry, str]]:
    for found in entries(path):
        yield found
        return


def read_decisions(path: Path, *, time_scale: float = 1.0) -> Iterator[LoggedRequest]:
    """The decisions in order of time, rotated files (``<path>.1`` and older) first.

    Args:
        path: the log.
        time_scale: stretches the time between requests; above 1 is a lighter load.

    Raises:
        SettingError: a file can't be read, or a line is wrong; names line and field.
    """
    if not time_scale > 0:
        raise SettingError(f"time scale {time_scale}: give a number above 0")
    first_s = last_s = None
    for index, row in enumerate(_in_order(_rows(path))):
        first_s = row.time_s if first_s is None else first_s
        last_s = row.time_s if last_s is None else max(last_s, row.time_s)
        prompt = Prompt(
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            blocks=spread(index * _BLOCKS_EACH, row.prompt_tokens // BLOCK_TOKENS),
        )
        yield LoggedRequest(
            arrival=Arrival(
                at_s=(last_s - first_s) * time_scale,
                prompt=prompt,
                model=row.model,
                tried=row.tried,
            ),
            cell=row.cell,
            probability=row.probability,
        )


class LoggedAssessor(MeasuredAssessor):
    """This fleet's speeds, and of its models what was believed of them at each decision.

    Args:
        sites: the fleet.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._models = {site.model for site in sites}
        self._next: LoggedRequest | None = None

    def arrivals(self, logged: Iterable[LoggedRequest]) -> Iterator[Arrival]:
        """What is to be sent; each must be decided on before the next is taken."""
        for self._next in logged:
            arrival = self._next.arrival
            yield arrival if arrival.model in self._models else arrival.to_any()

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """What the log says of the request that is decided on."""
        known = super().assess(request, models, tried, now)
        if self._next is not None:
            known.cell = self._next.cell
            said = self._next.probability
            if said:
                mean = sum(said.values()) / len(said)
                known.probability = np.array([said.get(model, mean) for model in models])
        return known


@dataclass(slots=True)
class _Row:
    time_s: float
    prompt_tokens: int
    output_tokens: int
    model: str
    tried: str
    cell: Cell
    probability: dict[str, float]
