"""The simulated engine: continuous batching, iteration by iteration.

An iteration enters the first pipeline stage on `step`, and its tokens exist when it leaves the last
one. With several stages, the next iteration may enter as soon as the first stage is free, so a step
ends when the first stage is free or a batch leaves, whichever comes first. There are never more
iterations in progress than stages; otherwise a batch that enters slightly early would make the
decodes behind it wait for a whole stage. A decoding sequence is in one batch at a time; a prefill
may have a chunk in every stage (stream pipeline) or in just one.

The effects of an iteration on sequences are applied when the next step begins, so readings in
between show the state at its start, as with a real engine.

As in vLLM, a preempted sequence loses its blocks, returns to its place in the queue, and prefills
both its prompt and the tokens it had generated.

A merged stretch gives every job the same times as single iterations. Only the choice of evicted
cached blocks can differ, and only if two sequences generate the same answer blocks concurrently.

It does not model tokenization, network, client behavior, speculative decoding or adapters.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from laar.errors import SettingError, unknown
from laar_lab.sim.engine.blocks import BlockPool
from laar_lab.sim.engine.cost import CostModel, Work
from laar_lab.sim.engine.interface import Job, KvEvent, Load, Progress, Step, check_job
from laar_lab.sim.engine.medha import Slack
from laar_lab.sim.engine.schedule import (
    Fcfs,
    NonPreemptive,
    Plan,
    PrefillFirst,
    Priority,
    Scheduler,
)
from laar_lab.sim.engine.sequence import Seq
from laar_lab.sim.engine.settings import EngineSettings
from laar_lab.sim.engine.states import StatePool

SCHEDULERS = ("fcfs", "non-preemptive", "prefill-first", "priority", "slack")
"""Names for `EngineSettings.scheduler`, besides `parallel`."""


def _scheduler(settings: EngineSettings, cost: CostModel) -> Scheduler:
    if settings.state_groups and (
        settings.scheduler not in ("fcfs", "priority")
        or settings.block_size > settings.max_num_batched_tokens
    ):
        raise SettingError(
            "engine settings: `state_groups` needs the scheduler fcfs or priority, and blocks of "
            "at most `max_num_batched_tokens`"
        )
    match settings.scheduler:
        case "fcfs":
            return Fcfs(settings)
        case "priority":
            return Priority(settings)
        case "prefill-first":
            return PrefillFirst(settings)
        case "non-preemptive":
            return NonPreemptive(settings)
        case "slack":
            return Slack(settings, cost)
        case other:
            raise SettingError(f"engine settings: {unknown('scheduler', other, SCHEDULERS)}")


@dataclass(slots=True)
class _Flight:
    """An iteration, or a merged stretch of `tokens` iterations, in the pipeline."""

    exit_s: float
    decoded: list[Seq]
    chunks: list[Seq]
    finals: list[Seq]
    tokens: int = 1
    start_s: float = 0.0
    line: tuple[float, float] = (0.0, 0.0)  # of a stretch: base seconds, seconds per context token
    context: int = 0  # of a stretch: tokens in all caches at its start

    def seconds(self, tokens: int) -> float:
        """Return the duration of the first `tokens` iterations of a stretch, in closed form."""
        base, slope = self.line
        batch = len(self.decoded)
        return tokens * (base + slope * (self.context + 0.5 * batch * (tokens + 1)))

    def tokens_by(self, until: float, most: int) -> int:
        """Return how many iterations, 1 to `most`, begin before `until`."""
        if until == math.inf:
            return most
        return max(1, bisect_left(range(most), until - self.start_s, key=self.seconds))


class SimulatedEngine:
    """An iteration-level `Engine`; see the interface.

    Args:
        cost: cost model of an iteration.
        settings: settings of the engine.

    Raises:
        SettingError: the scheduler is unknown, or can't serve a model with a recurrent state.
    """

    def __init__(self, cost: CostModel, settings: EngineSettings) -> None:
        self._cost, self._settings = cost, settings
        self._scheduler = _scheduler(settings, cost)
        self._block_size = settings.block_size
        self._grid = settings.block_size if settings.state_groups else 0
        # In a pipeline, a new job may enter behind a pass in progress, and KV groups may join in
        # the middle of a stretch. Neither can be computed in closed form.
        self._mergeable = cost.stages == 1 and cost.kv_parallel == 1
        self._one_chunk = cost.stages > 1 and not settings.stream_pipeline
        self._pool = BlockPool(settings.num_blocks, record=settings.kv_events)
        self._states = StatePool(self._pool, settings.state_groups)
        self._reset()

    def _reset(self) -> None:
        self.waiting: list[Seq] = []
        self.prefilling: list[Seq] = []
        self._decoding: list[Seq] = []
        self._jobs: dict[str, Seq] = {}
        self._flights: deque[_Flight] = deque()
        self._reported = 0  # number of leading flights whose progress was reported
        self._events: tuple[KvEvent, ...] = ()  # to be reported with the outstanding step
        self._decodes = Work()
        self._free_at = [-math.inf] * self._cost.stages
        self._clock = -math.inf
        self._numbers = self._admissions = 0
        self._preempted = False  # whether this iteration preempted; then it admits no job
        self._preemptions = self._queries = self._hits = 0

    # The Engine interface.

    def submit(self, job: Job) -> None:
        """Put a job in the waiting queue; see the interface."""
        blocks = self._settings.num_blocks - self._states.running_blocks
        longest = blocks * self._block_size
        check_job(
            job,
            longest=longest,
            is_known=job.id in self._jobs,
            is_full=len(self.waiting) >= self._settings.max_num_queued,
        )
        seq = Seq(job, self._numbers)
        self._numbers += 1
        self._jobs[job.id] = seq
        insort(self.waiting, seq, key=self._scheduler.key)

    def cached_tokens(self, job: Job) -> int:
        """Look up the prompt; see the interface."""
        size = self._block_size
        found, _ = self._pool.match(job.blocks, (job.prompt_tokens - 1) // size)
        return self._states.resumable(job.blocks, found) * size

    def abort(self, job_id: str) -> None:
        """Drop a job; see the interface."""
        seq = self._jobs.pop(job_id, None)
        if seq is None:
            return
        seq.gone = True
        self._release(seq)
        for queue in (self.waiting, self.prefilling, self._decoding):
            if seq in queue:
                queue.remove(seq)

    def step(self, now: float, until: float | None = None) -> Step | None:
        """Run what starts at `now`; see the interface."""
        self._settle()
        begin = max(now, self._clock)  # a driver may be early by a rounding error
        if begin >= self._free_at[0] and len(self._flights) < self._cost.stages:
            self._schedule(begin, until)
        if not self._flights:  # the last blocks of an answer may have events left
            events = self._pool.drain()
            return Step(0.0, (), events) if events else None
        end = self._flights[0].exit_s
        is_idle = not (self.waiting or self.prefilling or self._decoding)
        if self._free_at[0] > begin and not (is_idle and until is not None):
            end = min(end, self._free_at[0])  # so that jobs can enter; `cut` handles new arrivals
        self._clock = end
        self._events = self._pool.drain()
        return self._tell(end - now)

    def cut(self, now: float) -> Step | None:
        """Shorten a merged stretch, or a wait for the last stage; see the interface."""
        if not self._flights or now >= self._clock:
            return None
        flight = self._flights[0]
        if flight.tokens > 1:
            tokens = flight.tokens_by(now, flight.tokens)
            if tokens == flight.tokens:
                return None
            flight.tokens = tokens
            end = flight.start_s + flight.seconds(tokens)
            flight.exit_s = self._free_at[0] = self._clock = end
        else:  # it is only waiting for a batch to leave the last stage
            entry = max(now, self._free_at[0])
            if entry >= self._clock:
                return None
            self._clock = entry
        return self._tell(self._clock - now)

    def restart(self) -> tuple[str, ...]:
        """Lose all state; see the interface."""
        lost = tuple(self._jobs)
        self._reset()
        self._pool.clear()
        return lost

    def load(self) -> Load:
        """Return the current figures; see the interface."""
        return Load(
            running=len(self._jobs) - len(self.waiting),
            waiting=len(self.waiting),
            kv_usage=self._pool.usage,
            preemptions=self._preemptions,
            prefix_queries_tokens=self._queries,
            prefix_hits_tokens=self._hits,
        )

    # The desk, as seen by schedulers.

    def decode_work(self) -> Work:
        """Return a fresh `Work` with the decodes of this iteration."""
        return self._decodes.copy()

    def admissible(self, seq: Seq) -> tuple[bool, int]:
        """Return whether `admit` would succeed now, and the number of cached prompt tokens."""
        size = self._block_size
        # The last token is always computed: its output is the answer's first token.
        cached, _ = self._pool.match(seq.job.blocks, (seq.target - 1) // size)
        found, idle = self._pool.match(
            seq.job.blocks, self._states.resumable(seq.job.blocks, cached)
        )
        blocks = -(-seq.target // size) + self._states.running_blocks
        fits = (
            not self._preempted
            and len(self._jobs) - len(self.waiting) < self._settings.max_num_seqs
            and blocks - found + idle <= self._pool.free
        )
        return fits, found * size

    def admit(self, seq: Seq) -> bool:
        """Move a waiting sequence to `prefilling`; return False if its blocks do not fit."""
        fits, cached = self.admissible(seq)
        if not fits or (self._grid and not self._set_stops(seq, cached)):
            return False
        size, states = self._block_size, self._states
        found = cached // size
        seq.held = list(seq.job.blocks[:found])
        self._pool.share(seq.held)
        seq.blocks = -(-seq.target // size)
        if self._grid and found:
            states.keep(seq.held[-1])
        self._pool.take(seq.blocks - found + states.running_blocks)
        seq.context = cached
        if seq.admitted < 0:
            # Once preempted, all is prefilled here.
            seq.context = seq.cached = cached = max(cached, seq.job.fetched)
            self._queries += seq.job.prompt_tokens
            self._hits += found * size
            if seq.job.fetched:
                self._publish(seq)
        seq.admitted = self._admissions
        self._admissions += 1
        self.waiting.remove(seq)
        self.prefilling.append(seq)
        return True

    def _set_stops(self, seq: Seq, cached: int) -> bool:
        """Set where a sequence keeps states; return False if it has to wait for another's state.

        Blocks count as cached in the iteration that computes them, but states only after it.
        """
        size, blocks = self._block_size, seq.job.blocks
        last = (seq.target - 1) // size
        leaves, _ = self._pool.match(blocks, last)
        for other in self.prefilling:
            # Chained hashes are equal only if all before them are.
            same = sum(map(operator.eq, blocks, other.job.blocks))
            shared = min(same, last, other.target // size)
            if any(max(cached, other.context) < stop <= shared * size for stop in other.stops):
                return False
            leaves = max(leaves, shared)
        seq.stops = [size * leaves, (seq.job.prompt_tokens - 1) // size * size]
        return True

    # One iteration.

    def _schedule(self, now: float, until: float | None) -> None:
        self._preempted = False
        self._grow()
        self._decodes = work = Work()
        if self._cost.kv_parallel == 1:
            work.add_decodes(len(self._decoding), sum([seq.context for seq in self._decoding]))
        else:
            for seq in self._decoding:
                work.add_decodes(1, seq.context, self._cost.kv_groups(seq.context))
        plan = self._scheduler.plan(now, self)
        if plan.chunks or (plan.decode and self._decoding):
            self._launch(now, plan, until)

    def _launch(self, now: float, plan: Plan, until: float | None) -> None:
        flight = _Flight(now, [], [], [], start_s=now)
        work = Work()
        if plan.decode and self._decoding:
            work = self._decodes
            flight.decoded, self._decoding = self._decoding, []
        for seq, chunk in plan.chunks:
            self._prefill(seq, chunk, flight, work)
        steady = plan.steady and not plan.chunks and not self._preempted
        if steady and self._mergeable and until is not None:
            self._stretch(flight, work, until)
            flight.exit_s = self._free_at[0] = now + flight.seconds(flight.tokens)
        else:
            stage_s = self._cost.stage_s(work) * self._strain(work.decodes)
            for stage, free_at in enumerate(self._free_at):
                flight.exit_s = max(flight.exit_s, free_at) + stage_s
                self._free_at[stage] = flight.exit_s
        self._flights.append(flight)

    def _strain(self, decodes: int) -> float:
        """Return how many times as long an iteration takes because of the size of its batch."""
        above = self._settings.collapse_above
        return self._settings.collapse_factor if 0 < above < decodes else 1.0

    def _prefill(self, seq: Seq, chunk: int, flight: _Flight, work: Work) -> None:
        work.add_chunk(chunk, seq.context, self._cost.kv_groups(seq.context + chunk))
        seq.context += chunk
        seq.flights += 1
        self._publish(seq)
        if seq.context in seq.stops and seq.context <= len(seq.held) * self._block_size:
            self._states.keep(seq.held[seq.context // self._block_size - 1])
        (flight.chunks if seq.remaining else flight.finals).append(seq)
        if self._one_chunk or not seq.remaining:  # without streaming the chunk must leave first
            self.prefilling.remove(seq)

    def _stretch(self, flight: _Flight, work: Work, until: float) -> None:
        """Merge iterations that only decode, as long as they are alike and begin before `until`."""
        base, slope = self._cost.decode_line(work.decodes)
        strain = self._strain(work.decodes)
        flight.line = base * strain, slope * strain
        flight.context = work.decode_context - work.decodes
        most = min([seq.left for seq in flight.decoded])
        size, free = self._block_size, self._pool.free
        while most > 1 and free < sum(
            [max(0, -(-(seq.context + most) // size) - seq.blocks) for seq in flight.decoded]
        ):
            most //= 2
        flight.tokens = flight.tokens_by(until, most)

    def _grow(self) -> None:
        """Give each decoding sequence room for one more token, preempting if there is none."""
        for seq in self._decoding[:]:
            if seq.context < seq.blocks * self._block_size:
                continue
            while not self._pool.free and seq in self._decoding:
                running = [other for other in self.prefilling if not other.flights]
                self._preempt(self._scheduler.victim(self._decoding + running))
            if seq in self._decoding:
                self._pool.take(1)
                seq.blocks += 1

    def _preempt(self, seq: Seq) -> None:
        (self._decoding if seq in self._decoding else self.prefilling).remove(seq)
        self._release(seq)
        seq.context = 0
        seq.target = seq.job.prompt_tokens + seq.generated
        seq.line = None
        insort(self.waiting, seq, key=self._scheduler.key)
        self._preempted = True
        self._preemptions += 1

    # The effects of an iteration.

    def _tell(self, duration_s: float) -> Step:
        progress: list[Progress] = []
        self._reported = 0
        for flight in self._flights:
            if flight.exit_s > self._clock:
                break
            self._reported += 1
            for seqs, tokens in ((flight.decoded, flight.tokens), (flight.finals, 1)):
                progress += [
                    Progress(seq.job.id, tokens, seq.left == tokens, seq.cached)
                    for seq in seqs
                    if not seq.gone
                ]
        return Step(max(0.0, duration_s), tuple(progress), self._events)

    def _settle(self) -> None:
        for _ in range(self._reported):
            flight = self._flights.popleft()
            decoded = [seq for seq in flight.decoded if not seq.gone]
            for seq in decoded:  # all take blocks before any releases them, as in single iterations
                seq.context += flight.tokens
                short = -(-seq.context // self._block_size) - seq.blocks
                if short > 0:  # in a stretch, blocks were counted but not taken
                    self._pool.take(short)
                    seq.blocks += short
            for seq in decoded:
                self._gain(seq, flight.tokens)
            for seq in flight.finals:
                seq.flights -= 1
                if not seq.gone:
                    self._gain(seq, 1)
            for seq in flight.chunks:
                seq.flights -= 1
                if self._one_chunk and not seq.gone:
                    self.prefilling.append(seq)
        self._reported = 0

    def _gain(self, seq: Seq, tokens: int) -> None:
        seq.generated += tokens
        self._publish(seq)
        if seq.left:
            self._decoding.append(seq)
        else:
            self._release(seq)
            del self._jobs[seq.job.id]

    def _publish(self, seq: Seq) -> None:
        """Index the blocks that are now full."""
        first = len(seq.held)
        fresh = seq.job.blocks[first : seq.context // self._block_size]
        if fresh:
            parent = seq.held[-1] if first else None
            seq.held.extend(fresh)
            self._pool.publish(fresh, parent)

    def _release(self, seq: Seq) -> None:
        if seq.blocks:
            nameless = seq.blocks - len(seq.held) + self._states.running_blocks
            self._pool.release(seq.held, nameless)
        seq.held, seq.blocks = [], 0
