"""What each aim costs and gains on overloaded chats, and how far the session gate goes.

Chats begin on a cold fleet, at most 64 in flight on 4 engines, or at 1.25 times the trace's speed
on 8. Agents are those of `agents-cliff`, with clients that say they wait for 600 s, as OpenAI's and
Anthropic's libraries do. `programs` admits sessions as agents' schedulers do: while a session's
context has room, for as long as it lasts, without a limit. `untold` is not told when sessions end,
but releases those that pause while others wait. `roomy` has caches for everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

from laar.core.cost import AIMS, CostWeights
from laar.flow.settings import FlowSettings
from laar.request import Request
from laar_lab.claims import Runs, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.agents_cliff import KV_TOKENS, SESSION_TOKENS, Turns
from laar_lab.policy_text import parse_policy
from laar_lab.report import Report, Table, Value
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Turn,
    VirtualFleet,
    asking_again,
    generator,
    hold_sessions,
    replay_open,
)
from laar_lab.statistics import mean
from laar_lab.suite import fleets
from laar_lab.suite.real import agents, chats
from laar_lab.sweep import grid
from laar_lab.tally import Tally

ROWS = {"8 engines, time x .8": (8, 1.25, 1024), "4 engines, 64 in flight": (4, 1.0, 64)}
"""Engines, speed of the trace, and most requests in flight, by name."""

RULES = (
    "llm-d-latency:drawn=0,tpot_weight=0.2",
    "llm-d-guide:prefill_tokens_per_s=0",
    "gorgo:rtt_weight=0.68,queue_weight=0.115",
    "lmetric",
    "dynamo",
)
"""The rules that are best for some column on other requests; SMG's was never."""

SHOWN = {
    "ttft_mean_s": "TTFT mean",
    "ttft_p95_s": "p95",
    "e2e_mean_s": "E2E mean",
    "e2e_p99_s": "p99",
}
LOADS = (1.1, 1.5, 2.0, 3.0, 4.0)
"""Sessions at once, as multiples of those whose contexts fit."""

WAYS = ("laar", "programs", "untold", "roomy")
_LEASE_S = 30.0  # the best of 10, 20, 30 and 60
_WEIGHTS: dict[str, CostWeights] = {aim: CostWeights(aim=aim) for aim in AIMS}
_REQUESTS, _UNTIL_S = 600, 480.0
_ENGINE = "llama-3-8b-a100"
_ENVOYS_S = 300.0  # `laar envoy --longest-hold`
_SAID_S = 600.0  # by OpenAI's and Anthropic's libraries

Ended = Callable[[Exchange], None]


def run_chats(data: Path, row: str, policy: str, seed: int) -> dict[str, float]:
    """Run a rule, or an aim of laar, on a row of the table."""
    engines, speed, cap = ROWS[row]
    name, values = parse_policy("laar" if policy in AIMS else policy)
    fleet = VirtualFleet(
        fleets.of_one(_ENGINE, engines),
        FleetSettings(policy=name, parameters=values, weights=_WEIGHTS.get(policy, CostWeights())),
        seed=seed,
        assessor=fleets.nothing([]),
    )
    tally, arrivals = Tally(), chats(data, speed)(generator(seed, "overload"), 300.0)
    replay_open(fleet, islice(arrivals, _REQUESTS), tally.add, max_in_flight=cap)
    return tally.numbers()


class Programs:
    """Admits sessions while their contexts have room, each at one endpoint for as long as it lasts.

    A session whose context outgrows its endpoint's room is paused after its turn, and with a lease
    one that has sent nothing for so long.
    """

    def __init__(self, fleet: VirtualFleet, names: Iterable[str], lease_s: float) -> None:
        self._fleet, self._room = fleet, dict.fromkeys(names, float(KV_TOKENS))
        self._lease_s, self._until_s = lease_s, dict[str, float]()
        self._placed: dict[str, tuple[str, float]] = {}
        self._waiting: list[tuple[Request, Arrival, Ended]] = []

    def watched(
        self, sessions: Iterable[tuple[str, Iterable[Turn]]]
    ) -> Iterator[tuple[str, Iterable[Turn]]]:
        """Yield the sessions, and release the room of each after its last turn."""

        def turns(name: str, of: Iterable[Turn]) -> Iterator[Turn]:
            yield from of
            self._release(name)

        return ((name, turns(name, of)) for name, of in sessions)

    def send(self, request: Request, arrival: Arrival, ended: Ended) -> None:
        """Send a turn, or let it wait."""
        self._waiting.append((request, arrival, ended))
        self._admit()

    def _admit(self) -> None:
        for turn in list(self._waiting):
            prompt, name = turn[1].prompt, turn[1].session
            tokens = float(prompt.prompt_tokens + prompt.output_tokens)
            address, had = self._placed.get(name, (max(self._room, key=self._room.__getitem__), 0))
            if had or self._room[address] >= min(tokens, KV_TOKENS):
                self._waiting.remove(turn)
                self._until_s.pop(name, None)
                self._room[address] -= tokens - had
                self._placed[name] = address, tokens
                self._go(address, *turn)
        ended = [name for name, at in self._until_s.items() if at <= self._fleet.clock.now]
        if self._waiting and ended:
            self._release(ended[0])

    def _go(self, address: str, request: Request, arrival: Arrival, ended: Ended) -> None:
        def over(exchange: Exchange) -> None:
            ended(exchange)
            if self._room[address] < 0.0:
                self._release(arrival.session)
            else:
                until_s = self._until_s[arrival.session] = self._fleet.clock.now + self._lease_s
                self._fleet.clock.later(until_s, self._admit)

        self._fleet.send(replace(request, subset=frozenset({address})), arrival.prompt, over)

    def _release(self, name: str) -> None:
        self._until_s.pop(name, None)
        if (placed := self._placed.pop(name, None)) is not None:
            self._room[placed[0]] += placed[1]
            self._admit()


def run_agents(data: Path, load: float, way: str, seed: int) -> dict[str, float]:
    """Run agents on four engines in one of the ways."""
    is_laar = way in ("laar", "roomy")
    sites = fleets.of_one(_ENGINE, 4, kv_tokens=KV_TOKENS * (100 if way == "roomy" else 1))
    fleet = VirtualFleet(
        sites,
        FleetSettings(policy="laar" if is_laar else "least-loaded"),
        seed=seed,
        assessor=fleets.nothing([]),
        flow=FlowSettings() if way == "laar" else None,
        by_load=False,
    )
    turns, held = Turns(_UNTIL_S, 0.2 * _UNTIL_S), [0.0]
    sessions, plain = agents(data)(generator(seed, "cliff")), asking_again(fleet, lambda: None)
    lease_s = _LEASE_S if way == "untold" else math.inf
    programs = Programs(fleet, [site.name for site in sites], lease_s)

    def send(request: Request, arrival: Arrival, ended: Ended) -> None:
        plain(replace(request, longest_hold_s=_ENVOYS_S, patience_s=_SAID_S), arrival, ended)

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        turns.ended(arrival, exchange)
        held.append(exchange.decision.now - arrival.at_s)

    hold_sessions(
        fleet,
        programs.watched(sessions) if way == "programs" else sessions,
        ended,
        at_once=round(load * 4 * KV_TOKENS / SESSION_TOKENS),
        ramp_s=60.0,
        until_s=_UNTIL_S,
        send=send if is_laar else programs.send,
    )
    return {**turns.numbers(), "held_s": max(held)}


def run(scope: Scope) -> Report:
    """Run both; report the chats relative to the best rule for each metric."""
    policies = (*AIMS, *RULES)
    cases = {key: (scope.data, *key) for key in product(ROWS, policies)}
    seen = grid(run_chats, cases, scope.seeds, label="overload, chats")
    loads = LOADS[::3] if scope.quick else LOADS
    gated = {key: (scope.data, *key) for key in product(loads, WAYS)}
    turns = grid(run_agents, gated, scope.seeds, label="overload, agents")
    best = {key: mean(_best(seen, *key), key[1]).mean for key in product(ROWS, SHOWN)}
    chats_rows: list[tuple[Value, ...]] = [
        (row, of, *(mean(seen[row, of], name).mean / best[row, name] for name in SHOWN))
        for row, of in product(ROWS, policies)
    ]
    shown = ("turns_per_s", "ttft_p95_s", "held_s")
    agents_rows: list[tuple[Value, ...]] = [
        (load, way, *(mean(turns[load, way], name) for name in shown))
        for load, way in product(loads, WAYS)
    ]
    title = "chats, relative to the best of the rules for each column"
    columns = ("times that fit", "", "turns/s", "p95 TTFT s", "longest held s")

    def compared(name: str, aim: str = "all") -> dict[str, Seen]:
        return {row: paired(seen[row, aim], _best(seen, row, name), name) for row in ROWS}

    evidence = {
        **{f"default-{name}": compared(name) for name in SHOWN},
        "named-ttft_mean_s": compared("ttft_mean_s", "first-token"),
        "turns": {
            f"{load}": paired(turns[load, "laar"], turns[load, "programs"], "turns_per_s")
            for load in loads
        },
    }
    return Report(
        evidence=evidence,
        tables=[
            Table(title=title, columns=("row", "", *SHOWN.values()), rows=chats_rows, digits=3),
            Table(title="agents", columns=columns, rows=agents_rows, digits=3),
        ],
    )


def _best(seen: Mapping[tuple[str, str], Runs], row: str, name: str) -> Runs:
    """Return the runs of the rule with the least mean."""
    return min((seen[row, rule] for rule in RULES), key=lambda runs: mean(runs, name).mean)


EXPERIMENTS = declared(__name__, {"overload": run})
