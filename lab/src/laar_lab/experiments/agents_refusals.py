"""More agents than fit in the caches, on engines that refuse prompts when the cache is full.

Real sessions of coding agents run as a closed loop on engines of llm-d's simulator, which answer
500 if a prompt does not fit in the KV cache. Envoy tries the next endpoint in the picker's list,
if any. A refused client retries every second until it is answered. A turn is counted when it has
been answered. laar runs in three ways: with its defaults, without its session gate, and with
neither the gate nor retries. llm-d's picker names only one endpoint, so Envoy can't retry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

from laar.core.request import Request
from laar.errors import RequestError
from laar.flow.settings import FlowSettings
from laar_lab.claims import Seen, level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.agents_runs import KV_TOKENS, Turns
from laar_lab.report import Report, means_table
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    VirtualFleet,
    generator,
    hold_sessions,
)
from laar_lab.suite import fleets
from laar_lab.suite.real import agents
from laar_lab.sweep import grid

RULES = {
    "laar": ("laar", 2, True),
    "laar, no gate": ("laar", 2, False),
    "laar, no gate, no retries": ("laar", 0, False),
    "llm-d": ("llm-d", 0, False),
}
"""Policy, number of fallbacks that the picker names, and whether the gate is on, by name."""

SESSIONS = (56, 88)

_UNTIL_S = 360.0
_UNCOUNTED_S = 72.0
_ASKS_AGAIN_S = 1.0


class _Clients:
    """Clients that retry, and what they saw."""

    def __init__(self, fleet: VirtualFleet) -> None:
        self._fleet = fleet
        self.turns = Turns(_UNTIL_S, _UNCOUNTED_S)

    def send(self, request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        """Send a turn repeatedly until it is answered."""

        def over(exchange: Exchange) -> None:
            if exchange.status == 200:
                ended(exchange)
            else:
                again()

        def again(_error: RequestError | None = None) -> None:
            self.turns.refused += 1
            due_s = self._fleet.clock.now + _ASKS_AGAIN_S
            one = replace(request, id=f"{request.id}+")
            self._fleet.clock.at(due_s, self.send, one, arrival, ended)

        self._fleet.enqueue(request, arrival.prompt, over, again)


def run_refusals(data: Path, at_once: int, rule: str, seed: int) -> dict[str, float]:
    """Run `at_once` concurrent sessions on eight engines."""
    sites = [
        replace(
            site,
            engine=replace(site.engine, settings=replace(site.engine.settings, refuses_full=True)),
        )
        for site in fleets.parallel(kv_tokens=KV_TOKENS)
    ]
    policy, fallbacks, gate = RULES[rule]
    fleet = VirtualFleet(
        sites,
        FleetSettings(policy=policy, fallbacks=fallbacks),
        seed=seed,
        assessor=fleets.nothing([]),
        flow=FlowSettings() if gate else None,
        by_load=False,
    )
    clients = _Clients(fleet)
    hold_sessions(
        fleet,
        agents(data, 0)(generator(seed, "refusals")),
        clients.turns.ended,
        at_once=at_once,
        ramp_s=60.0,
        until_s=_UNTIL_S,
        send=clients.send,
    )
    numbers = clients.turns.numbers()
    return {**numbers, "refused_per_turn": numbers["refused"] / numbers["turns"]}


_SHOWN = {
    "turns": "turns",
    "turn_s": "mean turn s",
    "ttft_s": "TTFT s",
    "ttft_p50_s": "p50",
    "ttft_p95_s": "p95",
    "hit_rate": "hit rate",
    "refused": "refusals seen",
}


def run(scope: Scope) -> Report:
    """Run every rule with 56 and with 88 sessions."""
    assert scope.data is not None
    loads = SESSIONS[:1] if scope.quick else SESSIONS
    cases = {(load, rule): (scope.data, load, rule) for load, rule in product(loads, RULES)}
    runs = grid(run_refusals, cases, scope.seeds, label="agents-refusals")
    table = means_table(
        "turns on engines that refuse prompts when the KV cache is full",
        ("sessions", "rule"),
        runs,
        _SHOWN,
    )

    def compared(ours: str, theirs: str, number: str) -> dict[str, Seen]:
        return {str(at): paired(runs[at, ours], runs[at, theirs], number) for at in loads}

    evidence = {
        "turns-moved": compared("laar, no gate", "laar, no gate, no retries", "turns"),
        "gate-refusals": {str(at): level(runs[at, "laar"], "refused_per_turn") for at in loads},
        "gate-turns": compared("laar", "laar, no gate", "turns"),
        "gate-turn-time": compared("laar", "laar, no gate", "turn_s"),
        "llm-d-turns": compared("laar", "llm-d", "turns"),
    }
    return Report(tables=[table], evidence=evidence)


EXPERIMENTS = declared(__name__, {"agents-refusals": run})
