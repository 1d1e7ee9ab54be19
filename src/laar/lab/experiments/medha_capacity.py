"""The load a system carries until first tokens take too long: Medha section 6.2, Figure 9b.

Capacity is the largest rate, on a geometric grid, up to which the 90th percentile of the time to
the first token stays within 10 s. The prompts are the same at every rate, only closer together.
"""

from __future__ import annotations

from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.medha_runs import (
    MEDHA,
    NON_PREEMPTIVE,
    SARATHI,
    over,
    percentile,
    run,
)
from laar.lab.intervals import estimate
from laar.lab.report import Check, Report, Table, Value
from laar.lab.sweep import sweep
from laar.lab.workloads.medha_mix import Mix

__all__ = ["EXPERIMENTS"]

_LIMIT_S = 10.0
_STEP = 1.15
_RATES = tuple(0.02 * _STEP**power for power in range(40))  # 0.02 to 4.7 requests a second
_REQUESTS = 800
_LEAST_S = 600.0
"""An overload shows only after a while, above all where short requests go first."""

_SYSTEMS = {"medha": MEDHA, "sarathi": SARATHI, "non-preemptive": NON_PREEMPTIVE}


def capacity(profile: str, requests: int, seed: int) -> float:
    """The largest rate of the grid that a system carries; binary search."""
    low, high = 0, len(_RATES)  # carried at low (taken for granted), not at high
    while high - low > 1:
        middle = (low + high) // 2
        rate = _RATES[middle]
        seen = run(profile, Mix(rate=rate, duration_s=max(_LEAST_S, requests / rate)), seed)
        if percentile(seen.ttft_s, 90.0) <= _LIMIT_S:
            low = middle
        else:
            high = middle
    return _RATES[low]


def run_capacity(scope: Scope) -> Report:
    """Every system's capacity on every seed."""
    requests = _REQUESTS // 4 if scope.quick else _REQUESTS
    cases = [(system, requests, seed) for system in _SYSTEMS.values() for seed in scope.seeds]
    found = sweep(capacity, cases, label="medha-capacity")
    count = len(scope.seeds)
    rates = {name: found[i * count : (i + 1) * count] for i, name in enumerate(_SYSTEMS)}
    rows: list[tuple[Value, ...]] = [
        (name, estimate(values), str(over(values, rates["medha"])))
        for name, values in rates.items()
    ]
    ratio = over(rates["non-preemptive"], rates["medha"])
    return Report(
        tables=[
            Table(
                title=f"Requests a second with p90 of the first token within {_LIMIT_S:.0f} s, "
                "5 % long",
                columns=("system", "capacity", "Medha's is so many times"),
                rows=rows,
            )
        ],
        checks=[
            Check(
                claim="Medha carries >= 5 times the non-preemptive load (published: 5 to 5.7)",
                held=ratio.low >= 5.0,
                seen=f"{ratio} times",
            )
        ],
    )


EXPERIMENTS = (
    Experiment(
        name="medha-capacity",
        claim="Medha carries at least five times the load of a non-preemptive system",
        source="Medha 6.2, Figure 9",
        run=run_capacity,
    ),
)
