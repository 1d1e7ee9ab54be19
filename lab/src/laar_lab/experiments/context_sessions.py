"""From 2 to 32 concurrent sessions of several turns each (ContextPilot, table 3b).

The conversations of `context-turns` run concurrently on one engine; each turn is sent a second
after the previous answer. The paper reports 1.92 times RadixCache's speed with 2 sessions and 1.49
times with 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from laar.context.hook import ContextHook
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_turns import ENGINE, NOTES, RECEIVED, WAYS, turn_messages
from laar_lab.report import Report, Table
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    LinkProfile,
    Site,
    Turn,
    VirtualFleet,
    hold_sessions,
)
from laar_lab.statistics import means, times
from laar_lab.sweep import grid
from laar_lab.tally import Tally
from laar_lab.workloads.rag_turns import HookedBodies, conversations

SESSIONS = (2, 4, 8, 16, 32)
_THINK_S = 1.0
_TURNS = 5


def run(scope: Scope) -> Report:
    """Run with each number of sessions, as received and with order and notes."""
    sessions = SESSIONS[::4] if scope.quick else SESSIONS
    cases = {key: key for key in product(sessions, (RECEIVED, NOTES))}
    runs = grid(run_sessions, cases, scope.seeds, label="context-sessions")
    table = Table(
        title=f"8 documents of 1,024 tokens a turn, {_TURNS} turns, 1 x {ENGINE}",
        columns=("", "found cached", "TTFT mean s", "times as fast"),
        rows=[
            (
                f"{n} sessions, {way}",
                *means(of, ("hit_rate", "ttft_s")),
                times(runs[n, RECEIVED], of, "ttft_s"),
            )
            for (n, way), of in runs.items()
        ],
    )
    evidence = {
        f"sessions-{n}": {"": paired(runs[n, RECEIVED], runs[n, NOTES], "ttft_s")}
        for n in (SESSIONS[0], SESSIONS[-1])
    }
    return Report(tables=[table], evidence=evidence)


def run_sessions(at_once: int, way: str, seed: int) -> dict[str, float]:
    """Run sessions on a fresh engine, `at_once` at a time and three times as many in total."""
    count = 3 * at_once
    load = conversations(seed, count=count, turns=_TURNS, docs=8, repeats=0.4, every_s=1.0)
    site = Site(
        name="engine", model="model", engine=load_profile(ENGINE), link=LinkProfile(rtt_s=0.0004)
    )
    fleet = VirtualFleet([site], FleetSettings(), seed=seed)
    settings = WAYS[way]
    bodies = HookedBodies(ContextHook(settings) if settings else None, output_tokens=32)
    messages = turn_messages()
    tally = Tally()

    def turns(conversation: int) -> Iterator[Turn]:
        for turn in load:
            if turn.conversation == conversation:  # made after the previous answer
                name = f"{conversation}/{turn.number}"
                prompt = bodies.prompt(name, messages(turn), fleet.clock.now)
                yield Turn(prompt=prompt, after_answer_s=_THINK_S, kind=name)

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if exchange.status == 200:
            bodies.accepted(arrival.kind, exchange.end_s)
        tally.add(arrival, exchange)

    named = [(str(number), turns(number)) for number in range(count)]
    hold_sessions(fleet, named, ended, at_once=at_once, ramp_s=_THINK_S * _TURNS)
    return {"hit_rate": tally.cached_tokens / tally.prompt_tokens, "ttft_s": tally.ttft.mean}


EXPERIMENTS = declared(__name__, {"context-sessions": run})
