"""The smallest driver: runs a single engine on a virtual clock, to measure it alone.

The fleet's simulation drives many engines from one heap; this driver submits a list of jobs to one
engine and records the times that a client would see. It also shows how to use `until` and `cut`:
merge without limit, and cut when a job arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from laar_lab.sim.engine.interface import Engine, Job


@dataclass(slots=True)
class Timing:
    """The times of a job in seconds on the virtual clock; infinite until they happen."""

    arrival_s: float
    first_token_s: float = math.inf
    end_s: float = math.inf
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_token_s - self.arrival_s


def drive(engine: Engine, jobs: Iterable[Job], *, merge: bool = True) -> dict[str, Timing]:
    """Run the jobs, given in order of arrival, to completion; return timings by id.

    Args:
        engine: idle and fresh.
        jobs: may be a generator, which is read one job ahead.
        merge: whether stretches of decoding may be merged, which does not change the outcome.
    """
    timings: dict[str, Timing] = {}
    until = math.inf if merge else None
    now, end, step = -math.inf, math.inf, None
    for job in chain[Job | None](jobs, (None,)):
        arrival_s = math.inf if job is None else job.arrival_s
        while end <= arrival_s and step is not None:
            now = end
            for gain in step.progress:
                timing = timings[gain.job_id]
                timing.cached_tokens = gain.cached_tokens
                if timing.first_token_s == math.inf:
                    timing.first_token_s = now
                if gain.finished:
                    timing.end_s = now
            step = engine.step(now, until)
            end = now + step.duration_s if step else math.inf
        if job is None:
            break
        shorter = engine.cut(arrival_s)
        if shorter is not None:
            step, end = shorter, arrival_s + shorter.duration_s
        engine.submit(job)
        timings[job.id] = Timing(arrival_s)
        if step is None:
            step = engine.step(arrival_s, until)
            end = arrival_s + step.duration_s if step else math.inf
    return timings
