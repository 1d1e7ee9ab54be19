"""A session's sub-agents admitted as one unit, compared with a session each.

Sessions of coding agents start groups of sub-agents (`laar_lab.workloads.families`) and wait for
them, with 1.5 times as many sessions as the caches hold. All rules have laar's gate; they differ in
what it knows of groups:

* alone: nothing, as in production: each sub-agent is a session.
* together: once a member has a place, the others are not held.
* bound: also, they go to the endpoint that has most of the group.
* over: a session's place is not kept while its group runs, nor the members' once it has ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from laar.core.decision import Decision
from laar.core.endpoints import Mask
from laar.core.interfaces import View
from laar.core.request import Request
from laar.flow.admission import Admission, _session
from laar.flow.sessions import Place
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.agents_cliff import SESSION_TOKENS, _Run
from laar_lab.experiments.agents_runs import KV_TOKENS
from laar_lab.report import Report, means_table
from laar_lab.sim.fleet import Arrival, Exchange, Turn, VirtualFleet, generator, request_of
from laar_lab.suite import fleets
from laar_lab.suite.real import agents
from laar_lab.sweep import grid
from laar_lab.workloads.families import GroupShape

RULES = ("alone", "together", "bound", "over")
_ENGINES, _LOAD, _RAMP_S = 4, 1.5, 60.0


class _Groups:
    """Changes a gate to one of the rules."""

    def __init__(self, gate: Any, rule: str) -> None:
        self._gate, self._rule = gate, rule
        self._request: Request | None = None
        self._slots: dict[str, Counter[int]] = defaultdict(Counter)
        self._members: dict[str, dict[str, None]] = defaultdict(dict)
        self._ask, self._admit = gate.ask, gate._admit
        self._places, self._counted = gate._places, gate._count
        gate.ask, gate._admit, gate._count = self.ask, self.admit, self.count
        if rule == "over":
            gate.sessions._losses = self.losses
        else:
            gate._places = self.places

    def ask(self, request: Request, now: float) -> Decision | int:
        self._request = request
        if not request.parent:  # its group has ended
            key = _session(request)
            self._slots.pop(key, None)
            for member in self._members.pop(key, ()) if self._rule == "over" else ():
                place = self._gate.sessions.place(member)
                if place is not None and not place.busy:
                    self._gate.sessions._forget(place)
        answer: Decision | int = self._ask(request, now)
        return answer

    def admit(self, item: Any, shorts_wait: bool, now: float) -> Any:
        self._request = item.request
        return self._admit(item, shorts_wait, now)

    def places(self, key: str, view: View, now: float, own: Mask | None = None) -> Mask:
        request = self._request
        assert request is not None
        slots = self._slots.get(_parent(request)) if request.parent else None
        if key and slots and self._gate.sessions.place(key) is None:
            most = view.slots == slots.most_common(1)[0][0]
            return most if self._rule == "bound" and most.any() else np.ones(len(view.slots), bool)
        free: Mask = self._places(key, view, now, own)
        return free

    def losses(
        self, leaving: list[tuple[Place, float]], waits: float
    ) -> Iterator[tuple[Place, float, float]]:
        sessions = self._gate.sessions
        for place, soon_s, later_s in type(sessions)._losses(sessions, leaving, waits):
            waits_for_group = place.key in self._slots
            yield (place, 0.0, 0.0) if waits_for_group else (place, soon_s, later_s)

    def count(self, decision: Decision, now: float) -> None:
        self._counted(decision, now)
        if decision.request.parent:
            key = _parent(decision.request)
            self._slots[key][decision.slot] += 1
            if (place := self._gate._turns.get(decision.id)) is not None:
                self._members[key][place.key] = None


def _parent(request: Request) -> str:
    return f"{request.tenant}\0{request.model}\0{request.parent}"


def hold_families(
    run: _Run, sessions: Iterator[tuple[str, Iterator[Turn]]], rng: Random, at_once: int
) -> None:
    """Run sessions as a closed loop; after some turns they start a group and wait for it."""
    clock, numbers, groups = run.fleet.clock, count(1), count(1)
    shape = GroupShape()
    chance = shape.chance()

    def goes_on(name: str, parent: str, turns: Iterator[Turn], over: Callable[[], None]) -> None:
        turn = next(turns, None)
        if turn is None:
            over()
        elif (due_s := clock.now + turn.after_answer_s) <= run.until_s:
            clock.at(due_s, go, name, parent, turns, turn, over)

    def go(
        name: str, parent: str, turns: Iterator[Turn], turn: Turn, over: Callable[[], None]
    ) -> None:
        arrival = Arrival(at_s=clock.now, prompt=turn.prompt, session=name, parent=parent)

        def ended(exchange: Exchange) -> None:
            run.turns.ended(arrival, exchange)
            if parent or rng.random() >= chance:
                goes_on(name, parent, turns, over)
            else:
                start(name, turns, over)

        run.send(request_of(next(numbers), arrival), arrival, ended)

    def start(name: str, turns: Iterator[Turn], over: Callable[[], None]) -> None:
        number = next(groups)
        members = shape.group(rng, number)
        left = len(members)

        def member_over() -> None:
            nonlocal left
            left -= 1
            if not left:
                goes_on(name, "", turns, over)

        for place, member in enumerate(members):
            goes_on(f"{name}/{number}.{place}", name, iter(member), member_over)

    def begin() -> None:
        name, turns = next(sessions)
        goes_on(name, "", iter(turns), begin)

    for place in range(at_once):
        clock.at(_RAMP_S * place / at_once, begin)
    clock.run()


def run_groups(data: Path, half: int, rule: str, seed: int) -> dict[str, float]:
    """Run a rule on half of the sessions."""
    sites = fleets.of_one("llama-3-8b-a100", _ENGINES, kv_tokens=KV_TOKENS)
    run = _Run(sites, "laar, gate", seed)
    if rule != "alone":
        _Groups(_gate(run.fleet), rule)
    sessions = agents(data, half)(generator(seed, "cliff"))
    at_once = round(_LOAD * _ENGINES * KV_TOKENS / SESSION_TOKENS)
    hold_families(run, sessions, generator(seed, "groups"), at_once)
    return run.turns.numbers()


def _gate(fleet: VirtualFleet) -> Admission:
    return fleet.flows[0]._admission


def run(scope: Scope) -> Report:
    """Run all rules on every seed."""
    assert scope.data is not None
    half = int(scope.seeds[0] >= 70_000)
    rules: Sequence[str] = RULES[:2] if scope.quick else RULES
    cases = {rule: (scope.data, half, rule) for rule in rules}
    runs = grid(run_groups, cases, scope.seeds, label="agents-groups")
    shown = {
        "turns_per_s": "turns/s",
        "turn_s": "mean turn s",
        "ttft_p95_s": "TTFT p95 s",
        "hit_rate": "hit rate",
        "fairness": "p95 session / mean",
    }
    table = means_table("1.5 times the sessions that fit", "rule", runs, shown, digits=3)
    evidence = {rule: {"": paired(runs[rule], runs["alone"], "turns_per_s")} for rule in rules[1:]}
    return Report(tables=[table], evidence=evidence)


EXPERIMENTS = declared(__name__, {"agents-groups": run})
