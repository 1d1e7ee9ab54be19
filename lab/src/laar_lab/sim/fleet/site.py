"""An endpoint of the virtual fleet: an engine driven by the virtual clock.

Stretches of decoding are merged and cut when something arrives, as in `laar_lab.sim.engine.drive`;
this gives the same times as single iterations with fewer calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from laar.errors import RequestError
from laar_lab.sim.engine import EngineProfile, Job, KvEvent, Load, Step, build_engine
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.link import LinkProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An endpoint as an experiment describes it.

    Args:
        name: its address in the picker's table.
        model: the model it serves.
        engine: profile of its engine.
        link: the network path to it.
        role: value of the label `llm-d.ai/role`; empty for none.
        transfer_tokens_per_s: tokens of KV that it fetches per second from an endpoint that has
            prefilled them, regardless of concurrent fetches; or that others pull from its cache,
            one pull after another.
        tokenize_s_per_token: seconds per prompt token, cached or not, before the engine schedules
            the request.
    """

    name: str
    model: str
    engine: EngineProfile
    link: LinkProfile = field(default_factory=LinkProfile)
    role: str = ""
    transfer_tokens_per_s: float = 100_000.0
    tokenize_s_per_token: float = 0.0


_LOST = RequestError(503, "connection_lost", "no process answers, or it ended meanwhile")

OnFirst = Callable[[int], None]
OnEnd = Callable[[RequestError | None], None]


class EngineHost:
    """Drives one engine.

    Args:
        clock: clock of the run.
        profile: profile of the engine.

    Attributes:
        down: whether connections are refused.
        starts: number of restarts.
        busy_s: seconds that the engine has spent running steps.
        on_events: called with the KV events of a step, if it has any.
    """

    def __init__(self, clock: VirtualClock, profile: EngineProfile) -> None:
        self._clock = clock
        self._engine = build_engine(profile)
        self._settings = profile.settings
        self._intake_free_s = 0.0
        self._step: Step | None = None
        self._version = 0
        self.down = False
        self.starts = 0
        self.busy_s = 0.0
        self.on_events: Callable[[Sequence[KvEvent]], None] = lambda _events: None
        self._ran_at = 0.0
        self._waiting: dict[str, tuple[OnFirst, OnEnd]] = {}
        self._begun: set[str] = set()

    def decodes(self, job_id: str) -> bool:
        """Return whether the engine's current step generates tokens of a job's answer."""
        if self._step is None:
            return False
        if self._settings.scheduler == "parallel":  # its steps list only some of the running jobs
            return job_id in self._begun
        return any(gain.job_id == job_id for gain in self._step.progress)

    @property
    def worked_s(self) -> float:
        """Seconds that the engine has spent running steps, including the current one."""
        return self.busy_s + (self._clock.now - self._ran_at if self._step is not None else 0.0)

    def load(self) -> Load:
        """Return the engine's current figures."""
        return self._engine.load()

    def cached_tokens(self, job: Job) -> int:
        """Return how many prompt tokens the engine would find in its cache now."""
        return self._engine.cached_tokens(job)

    def stop(self) -> None:
        """Stop the process: all running and waiting jobs and the cache are lost."""
        if self._step is not None:
            self.busy_s += self._clock.now - self._ran_at
        self.down, self._step = True, None
        self._version += 1
        self._intake_free_s = 0.0
        self._engine.restart()
        self._begun.clear()
        lost, self._waiting = self._waiting, {}
        for _, on_end in lost.values():
            on_end(_LOST)

    def start(self) -> None:
        """Restart the process with an empty cache; does nothing if it is running."""
        if self.down:
            self.down = False
            self.starts += 1

    def submit(
        self,
        job: Job,
        on_first: OnFirst,
        on_end: OnEnd,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """Submit a job now.

        Args:
            job: a job with the current time as its arrival.
            on_first: called with the number of cached tokens when the first token exists.
            on_end: called with None when the last token exists, or with the refusal.
            on_accepted: called when the engine accepts the job.
        """
        intake_s = self._settings.intake_of(job.prompt_tokens)
        if not intake_s:
            self._admit(job, on_first, on_end, on_accepted)
            return
        self._intake_free_s = max(self._clock.now, self._intake_free_s) + intake_s
        self._clock.at(self._intake_free_s, self._admit, job, on_first, on_end, on_accepted)

    def abort(self, job_id: str) -> None:
        """Drop a queued or running job without calling its callbacks."""
        self._waiting.pop(job_id, None)
        self._begun.discard(job_id)
        late_s = self._settings.abort_late_s
        if not late_s:
            self._drop(job_id)
        elif late_s < math.inf:
            self._clock.at(self._clock.now + late_s, self._drop, job_id)

    def _drop(self, job_id: str) -> None:
        shorter = self._engine.cut(self._clock.now)
        if shorter is not None:
            self._plan(shorter)
        self._engine.abort(job_id)

    def _admit(
        self, job: Job, on_first: OnFirst, on_end: OnEnd, on_accepted: Callable[[], None]
    ) -> None:
        if self.down:
            on_end(_LOST)
            return
        now = self._clock.now
        shorter = self._engine.cut(now)
        if shorter is not None:
            self._plan(shorter)
        try:
            self._engine.submit(job)
        except RequestError as refusal:
            on_end(refusal)
            return
        self._waiting[job.id] = (on_first, on_end)
        on_accepted()
        if self._step is None:
            self._run()

    def _run(self) -> None:
        self._ran_at = self._clock.now
        self._step = self._engine.step(self._clock.now, math.inf)
        if self._step is not None:
            self._plan(self._step)

    def _plan(self, step: Step) -> None:
        self._step = step
        self._version += 1
        self._clock.at(self._clock.now + step.duration_s, self._ended, self._version)

    def _ended(self, version: int) -> None:
        if version != self._version or self._step is None:
            return  # the step was cut meanwhile
        self.busy_s += self._clock.now - self._ran_at
        if self._step.events:
            self.on_events(self._step.events)
        for gain in self._step.progress:
            if gain.job_id not in self._waiting:
                continue  # dropped during the step
            if gain.job_id not in self._begun:
                self._begun.add(gain.job_id)
                self._waiting[gain.job_id][0](gain.cached_tokens)
            if gain.finished:
                self._begun.discard(gain.job_id)
                self._waiting.pop(gain.job_id)[1](None)
        self._run()
