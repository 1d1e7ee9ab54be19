"""The seam between a simulated engine and whatever drives its clock.

An engine is a pure object. A driver submits jobs and asks for one iteration at a time: `step(now)`
says how long the iteration takes and what will be true when it ends. The virtual-time fleet puts
the end of the iteration on its heap; the HTTP endpoint sleeps until then. Neither knows how the
engine schedules, and the engine never reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Engine", "Job", "Load", "Progress", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as an engine sees it.

    Args:
        id: unique among the jobs in the engine.
        arrival_s: when it reached the engine, on the driver's clock.
        prompt_tokens: length of the prompt.
        output_tokens: tokens the answer will have (>= 1).
        blocks: chained hashes of the prompt's full KV blocks, first to last; what the prefix cache
            is keyed by. Empty means that nothing of the prompt can be shared.
        priority: lower runs first, as in vLLM; 0 by default.
        ttft_objective_s: from arrival to first token; None when the client named none.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    priority: int = 0
    ttft_objective_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What one job gained in an iteration: `tokens` new output tokens, and whether it is done.

    `cached_tokens` is the part of the prompt that came from the prefix cache.
    """

    job_id: str
    tokens: int
    finished: bool
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration: it takes `duration_s`; `progress` holds from its end on."""

    duration_s: float
    progress: tuple[Progress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine would report on its metrics page at this moment."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries_tokens: int
    prefix_hits_tokens: int


class Engine(Protocol):
    """A simulated engine."""

    def submit(self, job: Job) -> None:
        """Puts a job in the waiting queue."""
        ...

    def abort(self, job_id: str) -> None:
        """Drops a job wherever it is; unknown ids are ignored."""
        ...

    def step(self, now: float) -> Step | None:
        """Runs the iteration that starts at `now`; None when there is nothing to do."""
        ...

    def load(self) -> Load:
        """The readings a scrape would get."""
        ...
