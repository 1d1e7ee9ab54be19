"""An engine unlike vLLM: requests run concurrently, and slow each other down.

This is the model of llm-d-inference-sim (commit eec055a, August 2026). Up to `max_num_seqs`
requests run concurrently, prefills included; a prefill takes a fixed time plus a time per uncached
token, then each token of the answer takes the same time, and all times are multiplied by

    1 + (load_factor - 1) * (n - 1) / (max_num_seqs - 1)

with n requests running. Other requests wait, first come, first served. There are no iterations,
chunks or batch limits. What a picker has learned about vLLM's iterations is useless here, so this
tests a cost whose model is wrong.

All running requests advance at the same rate, so the state is a single number: the work, in
unloaded seconds, that a request running since the start would have done. A request's first and last
tokens are fixed points on that scale; only the rate changes when requests come and go.

There are two differences from the original. The original sets a prefill's factor once, when the
prefill begins; here the factor follows the number of running requests. A prompt that does not fit
in the KV cache waits here, and gets a 500 in the original. As there, other requests can find a
prompt's blocks from the moment it begins.
"""

from __future__ import annotations

import math
from collections import deque

from laar.errors import SettingError
from laar_lab.sim.engine.blocks import BlockPool
from laar_lab.sim.engine.cost import LinearCost
from laar_lab.sim.engine.interface import Job, Load, Progress, Step, check_job
from laar_lab.sim.engine.settings import EngineSettings


class _Run:
    """A running job; `first_at` and `end_at` are points on the scale of work."""

    __slots__ = ("blocks", "cached", "end_at", "first_at", "gone", "held", "job", "reported")

    def __init__(self, job: Job, cached: int, held: list[int], blocks: int) -> None:
        self.job = job
        self.cached = cached
        self.held = held
        self.blocks = blocks
        self.first_at = self.end_at = math.inf
        self.reported = 0
        self.gone = False


class ParallelEngine:
    """A parallel `Engine`; see the interface.

    Args:
        cost: cost of a lone request, of which only the constants per prompt and per token are used.
        settings: settings of the engine, including `load_factor`.

    Raises:
        SettingError: the cost is not linear.
    """

    def __init__(self, cost: object, settings: EngineSettings) -> None:
        if not isinstance(cost, LinearCost):
            raise SettingError("engine settings: scheduler `parallel` needs a `linear` cost")
        self._cost, self._settings = cost, settings
        self._token_s = cost.decode_s_per_token
        self._slope = (settings.load_factor - 1.0) / max(1, settings.max_num_seqs - 1)
        self._pool = BlockPool(settings.num_blocks, record=settings.kv_events)
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Job] = deque()
        self._running: dict[str, _Run] = {}
        self._queued: set[str] = set()
        self._work = 0.0  # position on the scale of work, in unloaded seconds
        self._start_s, self._rate, self._target = 0.0, 1.0, 0.0  # of the outstanding step
        self._end_s = -math.inf
        self._gains: list[tuple[_Run, int]] = []  # the progress reported with that step
        self._queries = self._hits = 0

    def submit(self, job: Job) -> None:
        """Put a job in the waiting queue; see the interface."""
        longest = self._settings.num_blocks * self._settings.block_size
        check_job(
            job,
            longest=longest,
            is_known=job.id in self._running or job.id in self._queued,
            is_full=len(self._waiting) >= self._settings.max_num_queued,
        )
        self._waiting.append(job)
        self._queued.add(job.id)

    def cached_tokens(self, job: Job) -> int:
        """Look up the prompt; see the interface."""
        size = self._settings.block_size
        return self._pool.match(job.blocks, (job.prompt_tokens - 1) // size)[0] * size

    def abort(self, job_id: str) -> None:
        """Drop a job; if running, it still slows the others until the current step ends."""
        run = self._running.get(job_id)
        if run is not None:
            run.gone = True
        elif job_id in self._queued:
            self._queued.discard(job_id)
            self._waiting = deque(job for job in self._waiting if job.id != job_id)

    def step(self, now: float, until: float | None = None) -> Step | None:
        """Run to the next first or last token; without `until`, for about one token's time at most.

        See the interface. A step may end without progress so that new jobs can enter.
        """
        self._settle()
        self._admit()
        events = self._pool.drain()
        if not self._running:
            return Step(0.0, (), events) if events else None
        self._start_s = now
        self._rate = 1.0 + self._slope * (len(self._running) - 1)
        self._target = min(self._next_of(run, until is None) for run in self._running.values())
        if until is None:
            self._target = min(self._target, self._work + self._token_s / self._rate)
        duration_s = max(0.0, (self._target - self._work) * self._rate)
        self._end_s = now + duration_s
        return Step(duration_s, self._tell(until is None), events)

    def cut(self, now: float) -> Step | None:
        """End the outstanding step now; return None if it has ended or a new job would wait."""
        full = len(self._running) >= self._settings.max_num_seqs or self._waiting
        if now >= self._end_s or full:
            return None
        self._target = self._work + (now - self._start_s) / self._rate
        self._end_s = now
        self._gains.clear()
        return Step(0.0, ())

    def restart(self) -> tuple[str, ...]:
        """Lose all state; see the interface."""
        lost = (*self._running, *(job.id for job in self._waiting))
        self._reset()
        self._pool.clear()
        return lost

    def load(self) -> Load:
        """Return the current figures; see the interface."""
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self._pool.usage,
            preemptions=0,
            prefix_queries_tokens=self._queries,
            prefix_hits_tokens=self._hits,
        )

    def _next_of(self, run: _Run, each_token: bool) -> float:
        """Return the point on the scale of work at which the job next has progress."""
        if not run.reported:
            return run.first_at
        if each_token and run.reported + 1 < run.job.output_tokens:
            return run.first_at + run.reported * self._token_s
        return run.end_at

    def _tell(self, each_token: bool) -> tuple[Progress, ...]:
        """Return the progress made by the end of the step; it is applied in the next step."""
        for run in self._running.values():
            if run.gone or self._next_of(run, each_token) > self._target:
                continue
            finished = run.end_at <= self._target
            self._gains.append((run, run.job.output_tokens - run.reported if finished else 1))
        return tuple(
            Progress(run.job.id, tokens, run.reported + tokens == run.job.output_tokens, run.cached)
            for run, tokens in self._gains
        )

    def _settle(self) -> None:
        """End the outstanding step and apply the progress that it reported."""
        self._work = self._target
        for run, tokens in self._gains:
            run.reported += tokens
            if run.reported == run.job.output_tokens:
                self._publish(run, run.job.prompt_tokens + run.job.output_tokens)
                run.gone = True
        self._gains.clear()
        self._end_s = -math.inf
        for run in [run for run in self._running.values() if run.gone]:
            self._pool.release(run.held, run.blocks - len(run.held))
            del self._running[run.job.id]

    def _needs(self, job: Job) -> tuple[int, int, int]:
        """Return the numbers of a job's blocks: total, found cached, and taken from the pool."""
        size = self._settings.block_size
        # The last token is always computed: its output is the answer's first token.
        found, idle = self._pool.match(job.blocks, (job.prompt_tokens - 1) // size)
        blocks = -(-(job.prompt_tokens + job.output_tokens) // size)
        return blocks, found, blocks - found + idle

    def _admit(self) -> None:
        size = self._settings.block_size
        while self._waiting and len(self._running) < self._settings.max_num_seqs:
            job = self._waiting[0]
            blocks, found, taken = self._needs(job)
            if taken > self._pool.free:
                return
            self._waiting.popleft()
            self._queued.discard(job.id)
            held = list(job.blocks[:found])
            self._pool.share(held)
            self._pool.take(blocks - found)
            cached = max(found * size, job.fetched)
            run = _Run(job, cached, held, blocks)
            self._publish(run, job.prompt_tokens)
            self._schedule(run)
            self._running[job.id] = run
            self._queries += job.prompt_tokens
            self._hits += found * size

    def _schedule(self, run: _Run) -> None:
        cost, job = self._cost, run.job
        uncached = job.prompt_tokens - run.cached
        prefill_s = cost.prefill_overhead_s + cost.seconds_per_token * uncached
        prefill_s += cost.prefill_s_per_pair * uncached * (run.cached + 0.5 * uncached)
        run.first_at = self._work + prefill_s
        run.end_at = run.first_at + (job.output_tokens - 1) * self._token_s

    def _publish(self, run: _Run, tokens: int) -> None:
        """Put the blocks that this many tokens fill in the cache."""
        first = len(run.held)
        fresh = run.job.blocks[first : tokens // self._settings.block_size]
        if fresh:
            parent = run.held[-1] if first else None
            run.held.extend(fresh)
            self._pool.publish(fresh, parent)
