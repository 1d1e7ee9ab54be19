"""Replay laar's own decision log as a trace of the traffic that a picker saw.

The log gives each request's decision time, its length (the engine's count if its answer was read,
otherwise the estimate for the picked endpoint), the requested model, its language, length bucket
and task, the models already tried, and each model's P(correct) as estimated at the time. A policy
that prices accuracy therefore decides on the same numbers as the picker did.

A log contains no prompts, so some information is lost:

- Prefixes and sessions are unknown. No two prompts share a prefix, so caches and policies that rely
  on them have no effect, and cache estimates can't be replayed.
- The lengths of most answers are unknown (`bodies.sample_answers`). An unknown length is drawn
  from the last known ones; until one is known, it is `UNKNOWN_ANSWER_TOKENS`.
- Opaque requests have no length and are skipped. Refused requests are not in the log.
- A requested model that no endpoint of the new fleet serves, such as an alias, means any model. A
  model without a logged probability gets the mean of the others.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heappushpop
from itertools import count, islice, takewhile
from pathlib import Path

import numpy as np

from laar.accuracy.assessor import Assessment, Cell
from laar.core.request import Request
from laar.errors import SettingError
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, MeasuredAssessor, Prompt, Site, spread
from laar_lab.trace import MAX_TOKENS, Entry, entries, field, number, whole

MAX_REORDERED = 1 << 15
"""Number of lines (about 1 KB each) buffered for sorting by decision time, since the log lists
requests in the order in which they ended. A request that ends after so many later ones is sent
late."""

UNKNOWN_ANSWER_TOKENS = 128
"""Output length assumed until the length of an answer is known."""

_KEPT_ANSWERS = 1024
_BLOCKS_EACH = -(-MAX_TOKENS // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One decision from the log.

    Args:
        arrival: the request to send and its time.
        cell: the accuracy cell of the request.
        probability: P(correct) by model as estimated at the time, given the models already tried.
    """

    arrival: Arrival
    cell: Cell
    probability: Mapping[str, float]


def is_decision_log(path: Path) -> bool:
    """Return whether the file's first line is a decision or an outcome.

    Raises:
        SettingError: the file can't be read, or the line is not a JSON object.
    """
    return any(
        entry.keys() & {"candidates", "decision_id"} for _, entry in islice(entries(path), 1)
    )


def read_decisions(path: Path, *, time_scale: float = 1.0) -> Iterator[LoggedRequest]:
    """Yield the decisions, sorted by time; rotated files (``<path>.1`` and older) come first.

    Args:
        path: the log.
        time_scale: factor for the time between requests; above 1 means a lighter load.

    Raises:
        SettingError: a file can't be read, or a line is invalid; the message names the line and
            field.
    """
    if not time_scale > 0:
        raise SettingError(f"time scale {time_scale}: give a number above 0")
    first_s = last_s = None
    for index, logged in enumerate(_in_order(_requests(path))):
        arrival, prompt = logged.arrival, logged.arrival.prompt
        first_s = arrival.at_s if first_s is None else first_s
        last_s = arrival.at_s if last_s is None else max(last_s, arrival.at_s)
        blocks = spread(index * _BLOCKS_EACH, prompt.prompt_tokens // BLOCK_TOKENS)
        sent = replace(
            arrival,
            at_s=(last_s - first_s) * time_scale,
            prompt=replace(prompt, blocks=blocks),
        )
        yield replace(logged, arrival=sent)


def _in_order(requests: Iterable[LoggedRequest]) -> Iterator[LoggedRequest]:
    heap: list[tuple[float, int, LoggedRequest]] = []
    for order, logged in enumerate(requests):
        item = (logged.arrival.at_s, order, logged)
        if len(heap) < MAX_REORDERED:
            heappush(heap, item)
        else:
            yield heappushpop(heap, item)[2]
    while heap:
        yield heappop(heap)[2]


def _requests(path: Path) -> Iterator[LoggedRequest]:
    """Yield the log's requests in file order, with logged times and prompts without blocks."""
    rotated = (path.with_name(f"{path.name}.{age}") for age in count(1))
    older = list(takewhile(Path.is_file, rotated))
    rng = random.Random("answers")
    answers: list[int] = []
    for file in (*reversed(older), path):
        for where, entry in entries(file):
            if entry.get("reason") == "opaque" or "decision_id" in entry:
                continue
            end = field(entry, "completion", dict, where)
            output = end.get("completion_tokens")
            if output is not None:
                output = whole(end, "completion_tokens", where, least=0)
                if len(answers) < _KEPT_ANSWERS:
                    answers.append(output)
                else:
                    answers[rng.randrange(_KEPT_ANSWERS)] = output
            elif answers:
                output = answers[rng.randrange(len(answers))]
            else:
                output = UNKNOWN_ANSWER_TOKENS
            yield _logged(entry, end, max(1, output), where)


def _logged(entry: Entry, end: Entry, output_tokens: int, where: str) -> LoggedRequest:
    tried = field(entry, "tried_models", list, where)
    if not all(isinstance(model, str) for model in tried):
        raise SettingError(f"{where}: `tried_models` must be a list of names")
    rows = field(entry, "candidates", list, where)
    if not all(isinstance(row, dict) for row in rows):
        raise SettingError(f"{where}: `candidates` must be a list of objects")
    picked = whole(entry, "picked", where, least=0)
    if picked >= len(rows):
        raise SettingError(f"{where}: `picked` is {picked}, but there are {len(rows)} candidates")
    if end.get("prompt_tokens"):
        tokens = whole(end, "prompt_tokens", where, least=1)
    else:
        tokens = max(1, round(number(rows[picked], "tokens", where, most=MAX_TOKENS)))
    return LoggedRequest(
        arrival=Arrival(
            at_s=number(entry, "time", where),
            prompt=Prompt(prompt_tokens=tokens, output_tokens=output_tokens, blocks=array("Q")),
            model=field(entry, "asked_model", str, where),
            tried=",".join(tried),
        ),
        cell=(
            field(entry, "language", str, where),
            whole(entry, "bucket_tokens", where, least=0),
            field(entry, "task", str, where),
        ),
        probability={
            field(row, "model", str, where): number(row, "probability", where, most=1.0)
            for row in rows
        },
    )


class LoggedAssessor(MeasuredAssessor):
    """Assessor that combines this fleet's speeds with the P(correct) logged at each decision.

    Args:
        sites: the fleet.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._models = {site.model for site in sites}
        self._next: LoggedRequest | None = None

    def arrivals(self, logged: Iterable[LoggedRequest]) -> Iterator[Arrival]:
        """Yield the requests to send; each must be decided before the next one is taken."""
        for self._next in logged:
            arrival = self._next.arrival
            yield arrival if arrival.model in self._models else replace(arrival, model="auto")

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return the estimates that were logged for the current request."""
        known = super().assess(request, models, tried, now)
        if self._next is not None:
            said = self._next.probability
            mean = sum(said.values()) / len(said)
            known.probability = np.array([said.get(model, mean) for model in models])
            known.cell = self._next.cell
        return known
