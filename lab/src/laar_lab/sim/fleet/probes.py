"""Probes in a virtual fleet: the pickers' own requests to endpoints that they suspect."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count

from laar.core.director import Director
from laar.datalayer.asking import MAX_UNDER_WAY, TIMEOUT_S
from laar.errors import RequestError
from laar.health import GOOD, Kind, Reply
from laar_lab.sim.engine import Job
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.link import Link
from laar_lab.sim.fleet.site import EngineHost

_LOOK_S = 0.25
_TOKENS = 10


class Probes:
    """Sends a tiny request to each endpoint that a picker wants to probe.

    Args:
        clock: clock of the run.
        hosts: the engines, by name.
        links: the network paths to them, by name.
        directors: the pickers.
        rng: draws the jitter of the paths.
    """

    def __init__(
        self,
        clock: VirtualClock,
        hosts: Mapping[str, EngineHost],
        links: Mapping[str, Link],
        directors: Sequence[Director],
        rng: random.Random,
    ) -> None:
        self._clock = clock
        self._hosts = hosts
        self._links = links
        self._rng = rng
        self._numbers = count()
        self._waiting: dict[str, tuple[Director, int]] = {}
        for director in directors:
            director.health.questions.are_asked = True
            clock.later(_LOOK_S, self._look, director)

    def _look(self, director: Director) -> None:
        now = self._clock.now
        self._clock.later(now + _LOOK_S, self._look, director)
        most = MAX_UNDER_WAY - sum(asks is director for asks, _ in self._waiting.values())
        for slot in director.health.questions.due(now, most):
            name, job_id = director.table.address(slot), f"probe {next(self._numbers)}"
            self._waiting[job_id] = (director, slot)
            half = 0.5 * self._links[name].rtt_s(now, self._rng.gauss(0.0, 1.0))
            self._clock.at(now + half, self._arrive, name, job_id, half)
            self._clock.later(now + TIMEOUT_S, self._give_up, name, job_id)

    def _arrive(self, name: str, job_id: str, half: float) -> None:
        job = Job(id=job_id, arrival_s=self._clock.now, prompt_tokens=_TOKENS, output_tokens=1)

        def ended(refusal: RequestError | None) -> None:
            self._clock.at(self._clock.now + half, self._answered, job_id, refusal)

        self._hosts[name].submit(job, lambda _cached: None, ended)

    def _answered(self, job_id: str, refusal: RequestError | None) -> None:
        director, slot = self._waiting.pop(job_id, (None, 0))
        if director is None:
            return
        answered = partial(director.health.questions.answered, slot)
        if refusal is None:
            answered(Reply(status=200, found=GOOD, said=1), self._clock.now, None)
        elif refusal.reason == "connection_lost":
            answered(None, self._clock.now, None, refused=True)
        else:
            answered(Reply(status=refusal.status), self._clock.now, None)

    def _give_up(self, name: str, job_id: str) -> None:
        if (known := self._waiting.pop(job_id, None)) is not None:
            director, slot = known
            self._hosts[name].abort(job_id)
            director.health.questions.answered(slot, None, self._clock.now, Kind.HANG)
