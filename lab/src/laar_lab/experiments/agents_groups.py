"""Sub-agents: groups that start together, and for which their session waits.

Real sessions of coding agents run as in `agents-cliff`, 1.5 times as many as the caches hold. After
some turns a session starts a group of sub-agents, and goes on once all of them have ended. Sizes
are those of llm-d's corpus of agents' sessions: about half of all requests come in groups, whose
median is 7 and whose p90 is 51. Lengths are invented. A group's members begin with the sub-agents'
system prompt, which all groups share, and the group's brief, and then take a few turns each.

Two bounds, which no picker reaches: caches with room for everything, and the best number of
sessions at a time, as if the others could be held back for as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from laar.core.decision import Decision
from laar.flow.queue import Item
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.agents_cliff import JUDGED_FROM, SESSION_TOKENS, _Run, total
from laar_lab.experiments.agents_runs import KV_TOKENS
from laar_lab.report import Report
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Exchange, Prompt, Turn, generator, request_of
from laar_lab.sim.fleet import spread as ids
from laar_lab.suite import fleets
from laar_lab.suite.real import agents
from laar_lab.sweep import grid

_ENGINES, _LOAD, _RAMP_S, _UNTIL_S = 4, 1.5, 60.0, 960.0
_SHARE = 0.5  # of all requests that sub-agents send
_SIZE_LOG, _MAX_SIZE = (math.log(7.0), 1.55), 64
_TURNS, _PAUSE_S = 3.0, 3.0  # means, of a sub-agent
_SYSTEM_TOKENS = _BRIEF_TOKENS = 8_000
_OWN_LOG, _GROWTH_LOG, _OUTPUT_LOG = (7.3, 0.8), (7.3, 0.9), (5.3, 0.7)


def _size(rng: Random) -> int:
    return max(1, min(round(rng.lognormvariate(*_SIZE_LOG)), _MAX_SIZE))


_MEAN_SIZE = sum(map(_size, [Random(0)] * 4000)) / 4000

_ALONE, _FITS = "a session each", "all fits"
_UNITS = ("sub-agents first", "sessions of groups first", "lanes")
_RULES = {"least-loaded": "least-loaded", "no gate": "laar"}


def _member(rng: Random, group: int, member: int) -> Iterator[Turn]:
    """Draw a sub-agent's turns."""
    shared = ids(1 << 60, _SYSTEM_TOKENS // BLOCK_TOKENS)
    shared += ids(1 << 61 | group << 34, _BRIEF_TOKENS // BLOCK_TOKENS)
    tokens = _SYSTEM_TOKENS + _BRIEF_TOKENS + round(rng.lognormvariate(*_OWN_LOG))
    after_s = 0.0
    while True:
        output = max(1, round(rng.lognormvariate(*_OUTPUT_LOG)))
        own = (tokens + output) // BLOCK_TOKENS - len(shared)
        blocks = shared + ids(1 << 61 | group << 34 | member << 20, own)
        prompt = Prompt(prompt_tokens=tokens, output_tokens=output, blocks=blocks)
        yield Turn(prompt=prompt, after_answer_s=after_s)
        if rng.random() < 1.0 / _TURNS:
            return
        tokens += output + round(rng.lognormvariate(*_GROWTH_LOG))
        after_s = rng.expovariate(1.0 / _PAUSE_S)


class _Agent(NamedTuple):
    """A session, or a sub-agent of the session `parent`; `over` is called at its end.

    A session has the same groups under every rule, as it draws them itself.
    """

    name: str
    parent: str
    rng: Random
    turns: Iterator[Turn]
    over: Callable[[], None]


@dataclass(slots=True)
class _Families:
    """A closed loop of sessions that start groups and wait for them."""

    run: _Run
    sessions: Iterator[tuple[str, Iterator[Turn]]]
    seed: int
    way: str
    numbers: Iterator[int] = field(default_factory=count)
    waited: set[str] = field(default_factory=set)

    def begin(self) -> None:
        name, turns = next(self.sessions)
        rng = generator(self.seed, f"groups of {name}")
        self._goes_on(_Agent(name, "", rng, iter(turns), self.begin))

    def _goes_on(self, agent: _Agent) -> None:
        clock = self.run.fleet.clock
        turn = next(agent.turns, None)
        if turn is None:
            agent.over()
        elif (due_s := clock.now + turn.after_answer_s) <= self.run.until_s:
            clock.at(due_s, self._send, agent, turn.prompt)

    def _send(self, agent: _Agent, prompt: Prompt) -> None:
        arrival = Arrival(at_s=self.run.fleet.clock.now, prompt=prompt, session=agent.name)

        def ended(exchange: Exchange) -> None:
            self.run.turns.ended(arrival, exchange)
            odds = _SHARE / (1.0 - _SHARE) / _MEAN_SIZE / _TURNS
            begins = not agent.parent and agent.rng.random() < odds
            (self._start if begins else self._goes_on)(agent)

        request = request_of(next(self.numbers), arrival)
        request.parent = agent.parent
        ahead = {_UNITS[0]: bool(agent.parent), _UNITS[1]: agent.name in self.waited}
        request.priority = int(ahead.get(self.way, False))
        self.run.send(request, arrival, ended)

    def _start(self, agent: _Agent) -> None:
        group, size = next(self.numbers), _size(agent.rng)
        left = count(size - 1, -1)

        def member_over() -> None:
            if not next(left):
                self.waited.add(agent.name)
                self._goes_on(agent)

        for member in range(1, size + 1):
            turns = list(_member(agent.rng, group, member))
            name = f"{agent.name}/{group}.{member}"
            self._goes_on(_Agent(name, agent.name, agent.rng, iter(turns), member_over))


def _in_lanes(gate: Any) -> None:
    """Let sub-agents wait for room in a lane of their own, which holds up no session."""
    hold = gate._hold

    def held(item: Item, now: float) -> Decision | int:
        if item.for_context:
            item = replace(item, lane=f"{item.lane} {bool(item.request.parent)}")
        answer: Decision | int = hold(item, now)
        return answer

    gate._hold = held


def run_groups(data: Path, half: int, load: float, way: str, seed: int) -> dict[str, float]:
    """Run a rule on half of the sessions, `load` times as many at a time as the caches hold."""
    kv_tokens = KV_TOKENS * (100 if way == _FITS else 1)
    sites = fleets.of_one("llama-3-8b-a100", _ENGINES, kv_tokens=kv_tokens)
    run = _Run(sites, _RULES.get(way, "laar, gate"), seed, until_s=_UNTIL_S)
    if way == "lanes":
        _in_lanes(run.fleet.flows[0]._admission)
    sessions = agents(data, half)(generator(seed, "cliff"))
    families = _Families(run, sessions, seed, way)
    at_once = round(load * _ENGINES * KV_TOKENS / SESSION_TOKENS)
    for place in range(at_once):
        run.fleet.clock.at(_RAMP_S * place / at_once, families.begin)
    run.fleet.clock.run()
    return run.turns.numbers()


def run(scope: Scope) -> Report:
    """Run all rules and both bounds on every seed."""
    assert scope.data is not None
    half = int(scope.seeds[0] >= JUDGED_FROM)
    ways = [(_LOAD, way) for way in (*_RULES, _ALONE, *_UNITS, _FITS)]
    fewer = [(load, _ALONE) for load in (() if scope.quick else (0.75, 1.25))]
    cases = {case: (scope.data, half, *case) for case in (*ways, *fewer)}
    runs = grid(run_groups, cases, scope.seeds, label="agents-groups")
    alone = runs[_LOAD, _ALONE]
    best = max((*fewer, (_LOAD, _ALONE)), key=lambda case: total(runs[case], "turns_per_s"))
    rivals = {"unit": _UNITS, "fits": (_FITS,)}
    evidence = {
        name: {way: paired(runs[_LOAD, way], alone, "turns_per_s") for way in of}
        for name, of in rivals.items()
    }
    evidence["fewer"] = {f"{best[0]}": paired(runs[best], alone, "turns_per_s")}
    evidence["gate"] = {rule: paired(alone, runs[_LOAD, rule], "turns_per_s") for rule in _RULES}
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"agents-groups": run})
