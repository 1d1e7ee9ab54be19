"""The load that a system can carry before TTFT gets too long: Medha, section 6.2, figure 9b.

The capacity is the largest rate, on a geometric grid, at which p90 TTFT stays within 10 s. The
prompts are the same at every rate, only closer together.
"""

from __future__ import annotations

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, NON_PREEMPTIVE, SARATHI, over, percentile, run
from laar_lab.report import Report, Table
from laar_lab.statistics import estimate
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_LIMIT_S = 10.0
_STEP = 1.15
_RATES = tuple(0.02 * _STEP**power for power in range(40))  # 0.02 to 4.7 requests per second
_REQUESTS = 800
_LEAST_S = 600.0
"""Minimum length of a run; overload shows late, especially if short requests go first."""

_SYSTEMS = {"medha": MEDHA, "sarathi": SARATHI, "non-preemptive": NON_PREEMPTIVE}


def capacity(profile: str, requests: int, seed: int) -> float:
    """Return the largest rate of the grid that a system carries, by binary search."""
    low, high = 0, len(_RATES)  # `low` is carried (at first by assumption), `high` is not
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
    """Find every system's capacity on every seed."""
    requests = _REQUESTS // 4 if scope.quick else _REQUESTS
    cases = {name: (system, requests) for name, system in _SYSTEMS.items()}
    rates = grid(capacity, cases, scope.seeds, label="medha-capacity")
    table = Table(
        title=f"Requests per second with p90 TTFT within {_LIMIT_S:.0f} s, 5 % long",
        columns=("system", "capacity", "Medha's / this"),
        rows=[
            (name, estimate(values), str(over(values, rates["medha"])))
            for name, values in rates.items()
        ],
    )
    seen = Seen(rates["medha"], rates["non-preemptive"])
    return Report(tables=[table], evidence={"non-preemptive": {"": seen}})


EXPERIMENTS = declared(__name__, {"medha-capacity": run_capacity})
