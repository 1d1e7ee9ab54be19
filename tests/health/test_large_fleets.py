"""In a large fleet, a request takes hardly more steps of Python, and chance makes nobody quick."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from virtual_fleet import VirtualFleet, refuses, slow

import laar
from laar.fleet.membership import EndpointSpec
from laar.plugins.shares import FairShares
from laar_lab.suite import fleets
from laar_lab.suite.case import Case, Closed, Open, Pickers, run_case
from laar_lab.workloads.sessions import GORGO_CHATS, chats
from laar_lab.workloads.shared_prompts import AgentShape, agents

SOURCES = str(Path(laar.__file__).parent)
KINDS = {
    "some are fast": [slow(0.1)],
    "any pace": [slow(0.1), slow(0.3), slow(3.0), slow(10.0)],
    "some refuse": [slow(0.1), refuses(429, share=0.05)],
}
REQUESTS = 40
LOADS = {
    "agents": lambda n: Closed(draw=partial(agents, AgentShape()), at_once=7 * n, ramp_s=5.0),
    "chats": lambda n: Open(draw=partial(chats, replace(GORGO_CHATS, requests_per_s=0.9 * n))),
}


def steps_of(run, *given):
    """Return how many instructions of laar's own code a function runs."""
    count = 0

    def step(frame, what, _argument):
        nonlocal count
        count += what == "opcode"
        return step

    def call(frame, _what, _argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step if frame.f_code.co_filename.startswith(SOURCES) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        run(*given)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("models", [("m",), ("m", "n")])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_the_steps_of_a_request_do_not_grow_with_the_fleet(kinds, models):
    taken = []
    for endpoints in (10, 100):
        rng = random.Random(endpoints)
        behave = {n: rng.choice(kinds) for n in range(endpoints) if rng.random() < 0.4}
        fleet = VirtualFleet(endpoints, behave, clients=endpoints, prefixes=True)
        specs = [EndpointSpec(address=each, models=models) for each in fleet.addresses]
        fleet.table.replace("test", specs)
        fleet.run(12 * endpoints)
        taken.append(median(steps_of(fleet.run, REQUESTS) for _ in range(3)))
    assert taken[1] < 1.5 * taken[0]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("seed", range(2))
def test_equal_engines_serve_as_if_their_paces_were_confirmed(seed, load, monkeypatch):
    rng = random.Random(seed)
    endpoints, pickers = rng.randint(20, 50), Pickers(rng.choice((2, 8)), 0.02)
    fleet, sent = partial(fleets.of_one, "gorgo-main", endpoints), LOADS[load](endpoints)
    case = Case(name="", about="", role="judge", fleet=fleet, load=sent, minutes=0.25)
    found = run_case(case, "laar", seed, pickers=pickers)
    monkeypatch.setattr(FairShares, "_is_confirmed", lambda *_: True)
    assert found == pytest.approx(run_case(case, "laar", seed, pickers=pickers), rel=0.02)
