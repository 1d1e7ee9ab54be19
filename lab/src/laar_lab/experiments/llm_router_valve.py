"""The trade-off set by the threshold of llm-router's valve.

This is llm-router's local benchmark: three small workers on one machine, 12 sessions of 3 turns.
The published results for thresholds 1, 4, 8 and off are hit rates of 11, 92, 94 and 97 %, and 1.59,
1.30, 1.22 and 0.94 requests per second. Latency is measured for whole answers, as published (see
`router_sessions`). The published laptop was about half as fast as the one modeled here, and cached
prefixes per slot. Here prefixes are found cached even with threshold 1, which routes nothing by
prefix, so it is no worse than threshold 4.
"""

from __future__ import annotations

import numpy as np

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.router_sessions import run_on
from laar_lab.report import Report
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import RouterShape

VALVES = {"1": 1, "4": 4, "8": 8, "off": 0}
_SHAPE = RouterShape(  # a system prompt of 2,048 characters, `max_tokens` 8
    sessions=12, turns=3, system_tokens=1024, first_output_tokens=8
)
_WORKERS = 3

LAPTOP = EngineProfile(
    name="laptop",
    # Three workers with a 1.5B model in 4 bits on one chip (llama.cpp, two slots each): about 300
    # prefill tokens per second each, and little gain from decoding in batches.
    cost=LinearCost(seconds_per_token=3e-3, decode_s_per_token=0.02, decode_s_per_sequence=0.02),
    settings=EngineSettings(
        num_blocks=4096, max_num_seqs=2, max_num_batched_tokens=2048, scheduler="prefill-first"
    ),
)


def run(scope: Scope) -> Report:
    """Run with each threshold."""
    cases = {name: (valve,) for name, valve in VALVES.items()}
    runs = grid(run_valve, cases, scope.seeds, label="llm-router-valve")
    return Report(
        evidence={
            "requests-fall": {"": Seen(_trend(runs, "requests_per_s"))},
            "hits-rise": {"": Seen(_trend(runs, "routing_hits"))},
            "off-costs": {"": paired(runs["off"], runs["1"], "requests_per_s")},
        },
    )


def run_valve(valve: int, seed: int) -> dict[str, float]:
    """Run once with a threshold."""
    return run_on(LAPTOP, _WORKERS, "llm-router", _SHAPE, seed, valve)


def _trend(runs: dict[str, list[dict[str, float]]], name: str) -> list[float]:
    """Return the least-squares slope over the indexes of the thresholds, by seed."""
    by_seed = zip(*([run[name] for run in runs[valve]] for valve in VALVES), strict=True)
    return [float(np.polyfit(range(len(VALVES)), values, 1)[0]) for values in by_seed]


EXPERIMENTS = declared(__name__, {"llm-router-valve": run})
