"""Disaggregated prefill decided by cost, compared with always, never and a threshold.

There are eight endpoints of one model (8B on an A100 each, vLLM's scheduler). On all but one of the
loads, some of them only prefill for the others: with `never` these are idle, and with `always` the
others only decode, so the two bound any rule. On the last load every endpoint does both. The
traffic mixes conversations, whose prompts are mostly cached, with documents of about 8,000 tokens
that are read once.

All contestants choose endpoints by the same cost and differ only in the rule for using a separate
prefill endpoint. That favors the thresholds, which apply to the tokens that the answering endpoint
has not cached, because llm-d chooses the two endpoints by separate scores. KV is transferred at
100,000 tokens per second, regardless of concurrent transfers.

The better of `always` and `never` is the one with the lower mean E2E, as no rule has the TTFT of
one and the TPOT of the other. The loads were chosen on seed 100, so that not all overload `always`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import product
from random import Random

import numpy as np

from laar.plugins.apart import ApartRule
from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import Arrival, Exchange, FleetSettings, Site, VirtualFleet, replay_open
from laar_lab.sim.fleet.link import generator
from laar_lab.statistics import mean
from laar_lab.suite.fleets import coarse
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import WILDCHAT, ChatShape, chats

SECONDS = 60.0
UNCOUNTED_SHARE = 0.2

RULES: dict[str, tuple[ApartRule, int]] = {
    "by cost": ("by-cost", 0),
    "always": ("always", 0),
    "never": ("never", 0),
    "threshold 512": ("threshold", 512),
    "threshold 4096": ("threshold", 4096),
}
_OURS, _BOUNDS = "by cost", ("always", "never")

_TALKS = ChatShape(single_share=0.1, mean_turns=8.0, output_log=(5.5, 0.5), max_output_tokens=600)
_DOCUMENTS = replace(
    WILDCHAT,
    first_log=(9.0, 0.5),
    output_log=(4.6, 0.5),
    max_output_tokens=256,
    template_share=0.0,
    templates=1_000_000,  # no template is used; documents get numbers of their own
)


def _named(arrivals: Iterator[Arrival], kind: str) -> Iterator[Arrival]:
    return (replace(one, session=f"{kind} {one.session}", kind=kind) for one in arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A fleet and its traffic.

    Args:
        prefill: number of endpoints that only prefill.
        decode: number of endpoints that only decode.
        both: number of endpoints that do both.
        talks_per_s: requests per second in conversations.
        documents_per_s: requests per second with a document.
        talks: the shape of the conversations.
    """

    prefill: int
    decode: int
    both: int = 0
    talks_per_s: float
    documents_per_s: float
    talks: ChatShape = _TALKS

    def sites(self) -> list[Site]:
        """Return the endpoints."""
        engine = coarse(load_profile("llama-3-8b-a100"))
        roles = ["prefill"] * self.prefill + ["decode"] * self.decode + ["both"] * self.both
        return [
            Site(name=f"{role}-{n}", model="model", engine=engine, role=role)
            for n, role in enumerate(roles)
        ]

    def arrivals(self, rng: Random, duration_s: float) -> Iterator[Arrival]:
        """Yield the requests in chronological order."""
        kinds = (
            (replace(self.talks, requests_per_s=self.talks_per_s), "talk"),
            (replace(_DOCUMENTS, requests_per_s=self.documents_per_s), "document"),
        )
        parts = [
            _named(chats(shape, Random(rng.getrandbits(64)), duration_s), kind)
            for shape, kind in kinds
        ]
        return merge(*parts, key=lambda arrival: arrival.at_s)


LOADS = {
    "light": Load(prefill=3, decode=5, talks_per_s=2.0, documents_per_s=0.3),
    "half": Load(prefill=3, decode=5, talks_per_s=5.0, documents_per_s=0.6),
    "many talks": Load(prefill=3, decode=5, talks_per_s=8.0, documents_per_s=0.1),
    "many documents": Load(prefill=3, decode=5, talks_per_s=2.0, documents_per_s=1.6),
    "all of both": Load(prefill=0, decode=0, both=8, talks_per_s=6.0, documents_per_s=1.0),
}


def run_one(load: Load, rule: str, seconds: float, seed: int) -> dict[str, float]:
    """Run a load under a rule once."""
    apart, tokens = RULES[rule]
    settings = FleetSettings(apart=apart, apart_tokens=tokens)
    fleet = VirtualFleet(load.sites(), settings, seed=seed)
    ttft, tpot, e2e = [], [], []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if arrival.at_s < UNCOUNTED_SHARE * seconds:
            return
        ttft.append(exchange.first_s - arrival.at_s)
        e2e.append(exchange.end_s - arrival.at_s)
        if exchange.prompt.output_tokens > 1:
            tokens_s = exchange.end_s - exchange.first_s
            tpot.append(tokens_s / (exchange.prompt.output_tokens - 1))

    arrivals = load.arrivals(generator(seed, "prefill-decode"), seconds)
    replay_open(fleet, arrivals, ended, max_in_flight=4096)
    return {
        "ttft_p95_s": float(np.percentile(ttft, 95)),
        "tpot_p95_s": float(np.percentile(tpot, 95)),
        "e2e_mean_s": float(np.mean(e2e)),
    }


_Results = dict[str, dict[str, list[dict[str, float]]]]


def run(scope: Scope) -> Report:
    """Run every load under every rule."""
    seconds = 10.0 if scope.quick else SECONDS
    names = ("half",) if scope.quick else tuple(LOADS)
    cases = {(name, rule): (LOADS[name], rule, seconds) for name, rule in product(names, RULES)}
    found = grid(run_one, cases, scope.seeds, label="prefill-decode")
    results = {name: {rule: found[name, rule] for rule in RULES} for name in names}
    return Report(evidence=_evidence(results))


def _evidence(results: _Results) -> Evidence:
    evidence: dict[str, dict[str, Seen]] = {}
    for name, arms in results.items():
        better = min(_BOUNDS, key=lambda rule: mean(arms[rule], "e2e_mean_s").mean)
        for slug, metric in _CLAIMED.items():
            seen = paired(arms[_OURS], arms[better], metric)
            evidence.setdefault(f"{slug}-no-worse", {})[name] = seen
            if slug == "e2e":
                evidence.setdefault("e2e-much-better", {})[name] = seen
    return evidence


_CLAIMED = {
    "ttft": "ttft_p95_s",
    "tpot": "tpot_p95_s",
    "e2e": "e2e_mean_s",
}


EXPERIMENTS = declared(__name__, {"prefill-decode": run})
