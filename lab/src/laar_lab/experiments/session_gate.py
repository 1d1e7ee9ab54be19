"""Does admitting sessions by the price of cache room harm traffic whose contexts fit?

Every workload of `no-regret` runs with the default policy: with neither gate nor flow control, with
only the session gate, a picker's default. The load and the network are the same for each seed. The
real chats, whose requests name no session, run a second time with a name for each conversation.
This gives sessions that pause for minutes and rarely return.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from laar.flow.settings import FlowSettings
from laar_lab.claims import Evidence, Runs, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.fleet import Arrival
from laar_lab.suite.case import Case, Numbers, Open, run_case
from laar_lab.suite.runs import OURS, chosen
from laar_lab.suite.table import cases
from laar_lab.sweep import grid

WAYS = {"none": None, "gate": FlowSettings()}
"""Settings of the gate, by name in the table."""

_QUICK_CASES = ("agents-8k", "parallel-chats")


NAMED = ("conversations-short", "conversations-overload", "conversations-parallel")
"""Workloads of real chats that fill the caches; they also run with session names."""

PAST_THE_CLIFF = "agents-short"
"""Left out: its sessions need 2.2 million tokens, and the caches hold 2 million (decision 14)."""

_OWN_BLOCK = 40
"""Index of a block that differs between conversations, because system prompts end before it."""


def _named(case: Case) -> Case:
    """Return a case whose conversations have names derived from the beginning of their prompts."""
    assert isinstance(case.load, Open)
    named = replace(case.load, draw=partial(_draw_named, case.load))
    return replace(case, name=f"{case.name}, named", like=case.like or case.name, load=named)


def _draw_named(load: Open, rng: Random, duration_s: float) -> Iterator[Arrival]:
    for arrival in load.draw(rng, duration_s):
        blocks = arrival.prompt.blocks
        own = blocks[min(_OWN_BLOCK, len(blocks) - 1)] if len(blocks) else 0
        yield replace(arrival, session=f"{own:x}")


def _run(case: Case, way: str, share: float, seed: int) -> Numbers:
    return run_case(case, OURS, seed, share=share, gate=WAYS[way])


def run(scope: Scope) -> Report:
    """Run every workload in each way; report changes relative to no gate."""
    names = scope.workloads or (_QUICK_CASES if scope.quick else ())
    picked = [case for case in chosen(cases(scope.data), names) if case.name != PAST_THE_CLIFF]
    picked += [_named(case) for case in picked if case.name in NAMED]
    share = 0.2 if scope.quick else 1.0
    runs = {(case.name, way): (case, way, share) for case in picked for way in WAYS}
    found = grid(_run, runs, scope.seeds, label="session-gate")
    return Report(evidence=_evidence(found, [case.name for case in picked]))


def _evidence(found: Mapping[tuple[str, str], Runs], names: list[str]) -> Evidence:
    def longer(metric: str) -> dict[str, Seen]:
        return {name: paired(found[name, "gate"], found[name, "none"], metric) for name in names}

    return {"gate-ttft-mean": longer("ttft_mean_s"), "gate-e2e-mean": longer("e2e_mean_s")}


EXPERIMENTS = declared(__name__, {"session-gate": run})
