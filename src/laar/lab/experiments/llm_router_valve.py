"""llm-router's valve: what its threshold trades, and what random ties are for.

Its local benchmark: three small workers on one machine, 12 sessions of 3 turns. Published, for
thresholds 1, 4, 8 and off: hit rate 11, 92, 94, 97 %; requests a second 1.59, 1.30, 1.22, 0.94.
The second table is the negative control of the shuffle: with ties by index every first turn goes
to the first worker. Latency is that of whole answers, as there (see `router_sessions`); its laptop
was about half as fast as this one.
"""

from __future__ import annotations

from itertools import pairwise

from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.router_sessions import run_on
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Chart, Check, Report, Table, Value
from laar.lab.sweep import sweep
from laar.lab.workloads.sessions import RouterShape
from laar.sim.engine import EngineProfile, EngineSettings, LinearCost

__all__ = ["EXPERIMENTS"]

VALVES = {"1": 1, "4": 4, "8": 8, "off": 0}
_SHAPE = RouterShape(  # a system prompt of 2,048 characters, `max_tokens` 8
    sessions=12, turns=3, system_tokens=1024, first_output_tokens=8
)
_WORKERS = 3

LAPTOP = EngineProfile(
    name="laptop",
    # 1.5B in 4 bits with llama.cpp, three on one chip: some 300 tokens a second of prefill each,
    # and decoding that gains little from batches. Two slots.
    cost=LinearCost(seconds_per_token=3e-3, decode_s_per_token=0.02, decode_s_per_sequence=0.02),
    settings=EngineSettings(
        num_blocks=4096, max_num_seqs=2, max_num_batched_tokens=2048, scheduler="prefill-first"
    ),
)


def run(scope: Scope) -> Report:
    """Sweeps the threshold, with and without the shuffle."""
    cases = [
        (valve, shuffle, seed)
        for valve in VALVES.values()
        for shuffle in (True, False)
        for seed in scope.seeds
    ]
    results = iter(sweep(run_valve, cases, label="llm-router-valve"))
    runs = {
        (name, shuffle): [next(results) for _ in scope.seeds]
        for name in VALVES
        for shuffle in (True, False)
    }

    def of(valve: str, metric: str, shuffle: bool = True) -> Estimate:
        return estimate([run[metric] for run in runs[valve, shuffle]])

    rows: list[tuple[Value, ...]] = [
        (
            name,
            of(name, "routing_hits"),
            of(name, "hit_rate"),
            of(name, "e2e_p50_s"),
            of(name, "e2e_p95_s"),
            of(name, "requests_per_s"),
            of(name, "concentration"),
        )
        for name in VALVES
    ]
    ties: list[tuple[Value, ...]] = [
        (name, of(name, "concentration"), of(name, "concentration", shuffle=False))
        for name in VALVES
    ]
    rates = [of(name, "requests_per_s").mean for name in VALVES]
    hits = [of(name, "routing_hits").mean for name in VALVES]
    return Report(
        tables=[
            Table(
                title="12 sessions of 3 turns on 3 small workers, by the valve's threshold",
                columns=(
                    "threshold",
                    "routed by a prefix",
                    "cached",
                    "latency p50 s",
                    "p95 s",
                    "req/s",
                    "most to one",
                ),
                rows=rows,
            ),
            Table(
                title="Share of the most used worker",
                columns=("threshold", "ties by chance", "ties by index"),
                rows=ties,
            ),
        ],
        checks=[
            Check(
                claim="requests a second fall as the threshold rises",
                held=all(a >= b for a, b in pairwise(rates)),
                seen=", ".join(f"{rate:.2f}" for rate in rates),
            ),
            Check(
                claim="the share routed by a prefix rises with it",
                held=all(a <= b for a, b in pairwise(hits)),
                seen=", ".join(f"{hit:.0%}" for hit in hits),
            ),
        ],
        charts=[
            Chart(
                title="The valve",
                x_label="threshold",
                y_label="",
                x=list(VALVES),
                series={
                    "requests a second": [of(name, "requests_per_s") for name in VALVES],
                    "share routed by a prefix": [of(name, "routing_hits") for name in VALVES],
                },
            )
        ],
    )


def run_valve(valve: int, shuffle: bool, seed: int) -> dict[str, float]:
    """One run at one threshold."""
    return run_on(LAPTOP, _WORKERS, "llm-router", _SHAPE, seed, valve, shuffle)


EXPERIMENTS = (
    Experiment(
        name="llm-router-valve",
        claim="The valve's threshold trades throughput for cache hits",
        source="llm-router, valve ablation; gorgo.md 4.2",
        run=run,
    ),
)
