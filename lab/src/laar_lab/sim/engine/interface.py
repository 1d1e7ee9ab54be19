"""The interface between a simulated engine and the driver of its clock.

An engine is a pure object, to which a driver submits jobs. The driver runs one iteration at a time:
`step(now)` returns the duration of the iteration and the state at its end. The virtual-time fleet
puts the end of the iteration on its heap; the HTTP endpoint sleeps until then. Neither knows about
the engine's scheduling, and the engine never reads a clock.

For speed, a driver can let an engine merge a stretch of decode-only iterations into one step:
`step(now, until)` may merge iterations that begin before `until` (infinity is allowed). Before it
submits or aborts a job during a merged step, it calls `cut(now)`: the engine returns the part of
the stretch that still holds, up to the end of the current iteration. The outcome is then the same
as with single iterations, except that the times of tokens within a stretch are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from laar.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as seen by an engine.

    Args:
        id: unique among the jobs in the engine.
        arrival_s: when it reached the engine, on the driver's clock.
        prompt_tokens: length of the prompt.
        output_tokens: number of tokens of the answer, at least 1.
        blocks: chained hashes of the prompt's full KV blocks, first to last; the keys of the prefix
            cache. The blocks that the answer will fill may follow, so that a later turn finds them.
            If empty, no part of the prompt can be shared.
        priority: lower runs first, as in vLLM; 0 by default.
        ttft_objective_s: seconds from arrival to the first token; None if the client set none.
        fetched: tokens of the prompt whose KV comes with it, from another engine.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    priority: int = 0
    ttft_objective_s: float | None = None
    fetched: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """A job's progress in an iteration: new output tokens, and whether the job is finished.

    `cached_tokens` is the part of the prompt that came from the prefix cache.
    """

    job_id: str
    tokens: int
    finished: bool
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class KvEvent:
    """A change to the prefix cache; `parent` is the block before the first stored one."""

    kind: Literal["stored", "removed", "cleared"]
    hashes: tuple[int, ...] = ()
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The duration of an iteration or of a merged stretch, and the state at its end.

    `progress` contains only the jobs that gained tokens. `events` is empty unless the settings
    request events (`EngineSettings.kv_events`).
    """

    duration_s: float
    progress: tuple[Progress, ...]
    events: tuple[KvEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The current figures of the engine's metrics page."""

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
            RequestError: 400 for a job that can never run, 503 if the queue is full.
        """
        ...

    def cached_tokens(self, job: Job) -> int:
        """Return how many prompt tokens of the job are in the prefix cache now."""
        ...

    def abort(self, job_id: str) -> None:
        """Drop a job in any state; ignore unknown ids."""
        ...

    def step(self, now: float, until: float | None = None) -> Step | None:
        """Run what starts at `now`; return None if there is nothing to do.

        The driver calls it again at the end of the step, not before. Without `until` it runs one
        iteration; with it, it may merge a stretch of pure decoding (see the module's docstring).
        """
        ...

    def cut(self, now: float) -> Step | None:
        """Shorten the outstanding step to the part that can no longer change at `now`.

        Return the shortened step, with its duration measured from `now`, or None if the outstanding
        step stands.
        """
        ...

    def restart(self) -> tuple[str, ...]:
        """Lose all state, as after an out-of-memory crash; return the ids of the lost jobs.

        The driver must discard the outstanding step.
        """
        ...

    def load(self) -> Load:
        """Return the figures that a scrape would read."""
        ...


def check_job(job: Job, *, longest: int, is_known: bool, is_full: bool) -> None:
    """Reject a job that an engine can't run.

    Args:
        job: the submitted job.
        longest: maximum tokens of prompt plus output that fit in the KV cache.
        is_known: whether the engine has a job with this id.
        is_full: whether the engine's queue is full.

    Raises:
        RequestError: as for `Engine.submit`.
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
