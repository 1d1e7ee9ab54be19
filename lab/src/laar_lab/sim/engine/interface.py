"""The seam between a simulated engine and the driver of its clock.

An engine is a pure object. A driver submits jobs and asks for one iteration at a time: `step(now)`
gives the time of the iteration and the state at its end. The virtual-time fleet puts
the end of the iteration on its heap; the HTTP endpoint sleeps until then. Neither knows how the
engine schedules, and the engine never reads a clock.

A driver in a hurry lets an engine merge a stretch of decode-only iterations into one step:
`step(now, until)` may merge iterations that begin before `until` (infinity is allowed). Before it
submits or aborts a job while a merged step is outstanding, it calls `cut(now)`: the engine gives
the part of the stretch that is still true, up to the end of the iteration under way. Done so, the
outcome is that of single iterations; only the times of tokens inside a stretch are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from laar.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as an engine sees it.

    Args:
        id: unique among the jobs in the engine.
        arrival_s: when it reached the engine, on the driver's clock.
        prompt_tokens: length of the prompt.
        output_tokens: tokens the answer will have (>= 1).
        blocks: chained hashes of the prompt's full KV blocks, first to last; the keys of the prefix
            cache. They may go on with the blocks that the answer will fill, so that a next turn
            finds them. Empty means that nothing of the prompt can be shared.
        priority: lower runs first, as in vLLM; 0 by default.
        ttft_objective_s: seconds from arrival to first token; None when the client named none.
        fetched: the prompt's KV has come from another engine, all but the last token's.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    priority: int = 0
    ttft_objective_s: float | None = None
    fetched: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one job in an iteration: `tokens` new output tokens, and whether it is done.

    `cached_tokens` is the part of the prompt that came from the prefix cache.
    """

    job_id: str
    tokens: int
    finished: bool
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class KvEvent:
    """A change of the prefix cache. `parent` is the block before the first one stored."""

    kind: Literal["stored", "removed", "cleared"]
    hashes: tuple[int, ...] = ()
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration, or a merged stretch: it takes `duration_s`; all else holds from its end on.

    `progress` names only the jobs that gained tokens. `events` is empty unless the settings ask the
    engine to record them (`EngineSettings.kv_events`).
    """

    duration_s: float
    progress: tuple[Progress, ...]
    events: tuple[KvEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The figures of the engine's metrics page at this moment."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries_tokens: int
    prefix_hits_tokens: int


class Engine(Protocol):
    """A simulated engine."""

    def submit(self, job: Job) -> None:
        """Put a job in the waiting queue.

        Raises:
            RequestError: 400 for a job that can never run, 503 when the queue is full.
        """
        ...

    def cached_tokens(self, job: Job) -> int:
        """Prompt tokens that the prefix cache would give the job now."""
        ...

    def abort(self, job_id: str) -> None:
        """Drop a job wherever it is; unknown ids are ignored."""
        ...

    def step(self, now: float, until: float | None = None) -> Step | None:
        """Run what starts at `now`; None when there is nothing to do.

        It is called again at the end of the step, never before. Without `until` it is one
        iteration; with it, a stretch of pure decoding may be merged (see the module's text).
        """
        ...

    def cut(self, now: float) -> Step | None:
        """Shorten the outstanding step to what can't be changed any more at `now`.

        Returns the step that takes its place, its duration counted from `now`; None when the
        outstanding step stays as it is.
        """
        ...

    def restart(self) -> tuple[str, ...]:
        """Lose everything, as a crash for lack of memory does; return the ids of the lost jobs.

        The outstanding step is void: the driver must drop it.
        """
        ...

    def load(self) -> Load:
        """The readings a scrape would get."""
        ...


def check_job(job: Job, *, longest: int, is_known: bool, is_full: bool) -> None:
    """Refuse a job that an engine can't take.

    Args:
        job: that is submitted.
        longest: tokens of prompt and output that the KV cache holds.
        is_known: the engine has a job of this id.
        is_full: the engine's queue is.

    Raises:
        RequestError: as `Engine.submit`.
    """
    if job.prompt_tokens < 1 or job.output_tokens < 1 or is_known:
        raise RequestError(
            400, "bad_job", "needs a new id, and at least one prompt and one output token"
        )
    if job.prompt_tokens + job.output_tokens > longest:
        raise RequestError(
            400, "too_long", f"prompt and output are longer than the KV cache, {longest} tokens"
        )
    if is_full:
        raise RequestError(503, "queue_full", "the engine's queue is full", retry_after_s=1)
