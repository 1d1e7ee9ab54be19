"""Session gates of other routers; their rules for choosing endpoints are in `laar_lab.policies`.

Written from their documentation of November 2026: ThunderAgent in Dynamo 1.6 (arXiv 2602.13692) and
vLLM router 0.1.17 with program scheduling. None of their code was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from laar.core.request import Request
from laar_lab.sim.fleet import Arrival, Exchange, VirtualFleet

_TICK_S = 1.0


@dataclass(slots=True)
class _Program:
    """The gate's record of a session."""

    tokens: int
    inside: bool = False
    busy: bool = False
    idle_since_s: float = 0.0


@dataclass(slots=True)
class Gate:
    """Admits sessions while their contexts fit; variants evict and admit in different orders.

    Args:
        fleet: fleet that gets the requests.
        room_tokens: maximum total context of the admitted sessions.
        idle_s: idle time after which a session may be evicted for a waiting one.
        fades: whether the weight of an idle session's context halves every second (ThunderAgent).
    """

    fleet: VirtualFleet
    room_tokens: float
    idle_s: float = 0.0
    fades: bool = False
    _known: dict[str, _Program] = field(default_factory=dict)
    _queue: list[tuple[Request, Arrival, Callable[[Exchange], None]]] = field(default_factory=list)

    def send(self, request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        """Send a turn now, or once its session is admitted."""
        program = self._known.setdefault(request.session, _Program(0))
        program.tokens = arrival.prompt.prompt_tokens + arrival.prompt.output_tokens
        if not program.inside:
            self._queue.append((request, arrival, ended))
            self._let_in()
            return
        self._go(request, arrival, ended)

    def _go(self, request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        program = self._known[request.session]
        program.inside = program.busy = True

        def over(exchange: Exchange) -> None:
            program.busy, program.idle_since_s = False, self.fleet.clock.now
            ended(exchange)
            self._let_in()
            if self._queue:
                self.fleet.clock.later(self.fleet.clock.now + _TICK_S, self._let_in)

        self.fleet.send(request, arrival.prompt, over)

    def _let_in(self) -> None:
        now = self.fleet.clock.now
        inside = [each for each in self._known.values() if each.inside]
        if self.fades:
            self._queue.sort(key=lambda one: self._known[one[0].session].tokens)
        for each in sorted(inside, key=lambda each: each.idle_since_s):
            if not self._queue or self._fits(now):
                break
            if not each.busy and (self.fades or now - each.idle_since_s >= self.idle_s):
                each.inside = False
        while self._queue and self._fits(now):
            self._go(*self._queue.pop(0))

    def _fits(self, now: float) -> bool:
        used = sum(self._weight(each, now) for each in self._known.values() if each.inside)
        return used + self._known[self._queue[0][0].session].tokens <= self.room_tokens

    def _weight(self, each: _Program, now: float) -> float:
        if each.busy or not self.fades:
            return each.tokens
        return each.tokens * math.exp2(each.idle_since_s - now)
