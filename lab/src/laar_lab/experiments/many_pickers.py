"""The cost of several pickers, each of which learns of the others' decisions slightly late.

The production directors and their sharing are joined by a channel that delays every record: 5 ms of
batching, plus the transfer. The transfer takes 1 to 2 ms from a store on the same machine. 20 ms,
as with a busy store, is the target for the age of a record.

The reference is one picker that decides everything. Requests go to a random picker, so a session's
turns go to all of them. Two pickers that decide within the delay may choose the same idle endpoint:
that is the cost measured here, not a difference in learned estimates. If nothing is shared,
prefixes are lost as well.

The p95 of a few thousand requests changes by about 4 % if a single tie is broken differently, so
it takes many seeds to distinguish 3 % from nothing. The large fleet has ten times the requests and
needs only a few.
"""

from __future__ import annotations

from functools import partial

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.suite import fleets
from laar_lab.suite.case import Case, Closed, Numbers, Pickers, run_case
from laar_lab.suite.table import SUITE
from laar_lab.sweep import grid
from laar_lab.workloads.shared_prompts import AgentShape, agents

_QUICK_SHARE = 0.1
_LARGE, _LARGE_ENDPOINTS, _QUICK_ENDPOINTS = "agents-1000", 1000, 24
_SESSIONS_EACH = 7  # per endpoint, as in `agents-8k`
_DELAY_S = 0.02

_WORKLOADS = {"agents": "agents-8k", "conversations": "art-x2"}
_FOUR = {
    "one": Pickers(),
    "4, 20 ms": Pickers(4, _DELAY_S),
}
_EIGHT = {"one": Pickers(), "8, 20 ms": Pickers(8, _DELAY_S)}

Results = dict[str, list[Numbers]]


def run_four(scope: Scope) -> Report:
    """Run four pickers on agents and on conversations."""
    evidence: dict[str, dict[str, Seen]] = {"ttft": {}, "hits": {}}
    for part, name in _WORKLOADS.items():
        found = _runs(scope, name, _FOUR)
        late = found["4, 20 ms"]
        evidence["ttft"][part] = paired(late, found["one"], "ttft_p95_s")
        evidence["hits"][part] = paired(late, found["one"], "hit_rate")
    return Report(evidence=evidence)


def run_large(scope: Scope) -> Report:
    """Run a thousand endpoints behind eight pickers."""
    found = _runs(scope, _LARGE, _EIGHT)
    seen = paired(found["8, 20 ms"], found["one"], "ttft_p95_s")
    return Report(evidence={"large-ttft": {"": seen}})


def _runs(scope: Scope, name: str, ways: dict[str, Pickers]) -> Results:
    cases = {way: (name, pickers, scope.quick) for way, pickers in ways.items()}
    return grid(_run, cases, scope.seeds, label=f"many-pickers, {name}")


def _run(name: str, pickers: Pickers, quick: bool, seed: int) -> Numbers:
    share = _QUICK_SHARE if quick else 1.0
    if name == _LARGE:
        case = _large(_QUICK_ENDPOINTS if quick else _LARGE_ENDPOINTS)
    else:
        (case,) = (case for case in SUITE if case.name == name)
    return run_case(case, "laar", seed, share=share, pickers=pickers)


def _large(endpoints: int) -> Case:
    """Return the suite's workload of agents on a larger fleet, for only half a minute."""
    at_once = _SESSIONS_EACH * endpoints
    return Case(
        name=_LARGE,
        about="coding agents on a thousand endpoints",
        role="choose",
        fleet=partial(fleets.of_one, "gorgo-main", endpoints),
        load=Closed(draw=partial(agents, AgentShape()), at_once=at_once, ramp_s=5.0),
        minutes=0.5,
    )


EXPERIMENTS = declared(__name__, {"many-pickers": run_four, "many-pickers-large": run_large})
