"""Engines with a recurrent state, which resume a prompt only where they kept one, in a RAG fleet.

Four endpoints serve Qwen3.5-35B-A3B on an H100 each, as vLLM does (`laar_lab.sim.engine.states`).
A prompt has a document of 2,000 to 12,000 tokens, up to three passages of others and a question;
the 400 documents are asked about by rank^-0.9. At 8 requests per second least-loaded is overloaded.

All rules have the same fleet, prompts and times. `states unknown` is laar without what the metrics
page says of states: a prompt counts as cached up to its last cached block, answers that found less
correct it, and no candidate gets credit for a state. No claim is about laar with KV events, whose
mean TTFT was .440 and .496 s on the claims' seeds, against .441 and .498 without them.

The loads were chosen on seeds 0 to 15.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import Arrival, Exchange, FleetSettings, VirtualFleet, replay_open
from laar_lab.sim.fleet.link import generator
from laar_lab.suite.fleets import workers
from laar_lab.sweep import grid
from laar_lab.workloads.rag import long_documents
from laar_lab.workloads.rag_fleet import RagClient

RULES = {
    "laar": FleetSettings(),
    "laar with KV events": FleetSettings(cached_as="events"),
    "laar, states unknown": FleetSettings(cached_as="blocks"),
    "least-loaded": FleetSettings(policy="least-loaded"),
}
CLAIMED = ("laar", "laar, states unknown", "least-loaded")
LOADS = {"6 per second": 6.0, "8 per second": 8.0}
ENDPOINTS, DOCUMENTS, SECONDS, UNCOUNTED_S = 4, 400, 120.0, 30.0


def run_one(per_s: float, rule: str, seconds: float, seed: int) -> dict[str, float]:
    """Run a load under a rule once."""
    sites = workers(load_profile("qwen3.5-35b-a3b-h100"), ENDPOINTS)
    fleet, requests = VirtualFleet(sites, RULES[rule], seed=seed), round(per_s * seconds)
    load = long_documents(seed, requests=requests, documents=DOCUMENTS)
    client = RagClient(load, hooked=False, output_tokens=128)
    ttft, found, believed, prompt_tokens = [], 0, 0.0, 0

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        nonlocal found, believed, prompt_tokens
        if arrival.at_s < UNCOUNTED_S / SECONDS * seconds:
            return
        tokens = exchange.prompt.prompt_tokens
        ttft.append(exchange.first_s - arrival.at_s)
        found += exchange.cached_tokens
        believed += exchange.decision.believed_share * tokens
        prompt_tokens += tokens

    rng = generator(seed, "states")
    times_s = np.cumsum([rng.expovariate(per_s) for _ in range(requests)])
    replay_open(fleet, client.arrivals(fleet, times_s.tolist()), ended, max_in_flight=4096)
    return {
        "ttft_mean_s": float(np.mean(ttft)),
        "found": found / prompt_tokens,
        "believed": believed / prompt_tokens,
    }


def run(scope: Scope) -> Report:
    """Run every load under every rule."""
    seconds = 20.0 if scope.quick else SECONDS
    cases = {(name, rule): (LOADS[name], rule, seconds) for name, rule in product(LOADS, CLAIMED)}
    runs = grid(run_one, cases, scope.seeds, label="states")

    def beside(rule: str) -> dict[str, Seen]:
        return {name: paired(runs[name, "laar"], runs[name, rule], "ttft_mean_s") for name in LOADS}

    evidence = {
        f"beside-{slug}-mean": beside(rule)
        for slug, rule in (("unknown", "laar, states unknown"), ("least-loaded", "least-loaded"))
    }
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"states": run})
