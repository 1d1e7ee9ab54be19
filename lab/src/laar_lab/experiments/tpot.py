"""An objective for the time between tokens, on eight engines that prefill and decode.

Chats have the objective (`x-slo-tpot-ms`). Documents of about 8,000 tokens, each read once, have
none, and stall the answers next to which they are prefilled. The same requests run with the header,
without it, and without it under `apart: threshold`, which prefills long prompts at another of the
same endpoints. The last load is that of `prefill-decode`, where chats are conversations with long
prompts of their own, most of which are not cached when the run begins.

Loads and the weight of late tokens were chosen on seeds 100 and 101.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.prefill_decode import LOADS, RULES, UNCOUNTED_SHARE, Load
from laar_lab.report import Report
from laar_lab.sim.fleet import Arrival, Exchange, FleetSettings, VirtualFleet, replay_open
from laar_lab.sim.fleet.link import generator
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import WILDCHAT

_SECONDS = 40.0
_CHATS = replace(WILDCHAT, template_share=0.0)
_LOADS = {
    "chats": (
        Load(prefill=0, decode=0, both=8, talks_per_s=16.0, documents_per_s=1.5, talks=_CHATS),
        0.02,
    ),
    "many chats": (
        Load(prefill=0, decode=0, both=8, talks_per_s=24.0, documents_per_s=2.0, talks=_CHATS),
        0.025,
    ),
    "conversations": (LOADS["all of both"], 0.025),
}
"""The loads, each with the objective of its chats in seconds."""

_OURS, _PLAIN, _THRESHOLD = "objective", "none", "none, threshold 4096"
_ARMS = {_OURS: "by cost", _PLAIN: "by cost", _THRESHOLD: "threshold 4096"}


def run_one(name: str, arm: str, seconds: float, seed: int) -> dict[str, float]:
    """Run a load once; `within` is the share of the chats' answers within their objective."""
    load, objective_s = _LOADS[name]
    apart, tokens = RULES[_ARMS[arm]]
    settings = FleetSettings(apart=apart, apart_tokens=tokens)
    fleet = VirtualFleet(load.sites(), settings, seed=seed)
    ttft, within = [], []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if arrival.at_s < UNCOUNTED_SHARE * seconds:
            return
        ttft.append(exchange.first_s - arrival.at_s)
        if arrival.kind != "document" and exchange.prompt.output_tokens > 1:
            tokens_s = exchange.end_s - exchange.first_s
            within.append(tokens_s <= objective_s * (exchange.prompt.output_tokens - 1))

    arrivals = load.arrivals(generator(seed, "tpot"), seconds)
    if arm == _OURS:
        arrivals = (
            one if one.kind == "document" else replace(one, tpot_objective_s=objective_s)
            for one in arrivals
        )
    replay_open(fleet, arrivals, ended, max_in_flight=4096)
    return {
        "within": float(np.mean(within)),
        "ttft_s": float(np.mean(ttft)),
    }


def run(scope: Scope) -> Report:
    """Run every load with the objective and without."""
    seconds = 10.0 if scope.quick else _SECONDS
    cases = {(name, arm): (name, arm, seconds) for name, arm in product(_LOADS, _ARMS)}
    found = grid(run_one, cases, scope.seeds, label="tpot")
    evidence = dict[str, dict[str, Seen]]()
    for name in _LOADS:
        runs = {arm: found[name, arm] for arm in _ARMS}
        of = "conversations-" if name == "conversations" else ""
        for claim, rival, metric in (
            ("more", _PLAIN, "within"),
            ("more-than-apart", _THRESHOLD, "within"),
            ("first-tokens", _PLAIN, "ttft_s"),
        ):
            seen = paired(runs[_OURS], runs[rival], metric)
            evidence.setdefault(of + claim, {})[name] = seen
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"tpot": run})
