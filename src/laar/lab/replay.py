"""A user's own traffic against a user's own fleet, under any policies: `laar lab replay`.

The traffic is a trace (`laar.lab.trace`) or laar's decision log (`laar.lab.decisions`, which says
what a log can't tell); the first line shows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laar.errors import SettingError
from laar.lab.decisions import LoggedAssessor, is_decision_log, read_decisions
from laar.lab.intervals import Estimate
from laar.lab.report import Chart, Report, Table, Value
from laar.lab.sweep import sweep
from laar.lab.tally import METRICS, Tally
from laar.lab.trace import read_trace
from laar.policies import POLICY_NAMES
from laar.sim.fleet import MeasuredAssessor, VirtualFleet, replay_open
from laar.sim.fleet_file import read_fleet

__all__ = ["replay", "replay_one"]

_CHARTED = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "e2e_p50_s", "e2e_p95_s", "e2e_p99_s")
_LOG_REMARK = (
    "A decision log holds no prompts: here none shares a prefix or a session with another, and "
    "answers whose length it does not know have that of one it does."
)
_LABELS = ("TTFT p50", "TTFT p95", "TTFT p99", "E2E p50", "E2E p95", "E2E p99")


def replay(
    trace: Path,
    fleet: Path,
    policies: Sequence[str],
    *,
    time_scale: float,
    block_tokens: int,
    max_in_flight: int,
    seed: int,
) -> Report:
    """Runs the trace once for each policy.

    Raises:
        SettingError: something is wrong with the trace, the fleet or a policy's name.
    """
    for policy in policies:
        if policy not in POLICY_NAMES:
            raise SettingError(f"--policy {policy}: there are {', '.join(POLICY_NAMES)}")
    read_fleet(fleet)  # faults are told before anything runs
    cases = [(trace, fleet, p, time_scale, block_tokens, max_in_flight, seed) for p in policies]
    results = dict(zip(policies, sweep(replay_one, cases, label="replay"), strict=True))
    rows: list[tuple[Value, ...]] = [
        (policy, *(numbers[name] for name in METRICS)) for policy, numbers in results.items()
    ]
    chart = Chart(
        title="Latency by policy",
        x_label="",
        y_label="s",
        x=list(_LABELS),
        series={
            policy: [Estimate(numbers[name], float("nan")) for name in _CHARTED]
            for policy, numbers in results.items()
        },
        kind="bars",
    )
    table = Table(title=trace.name, columns=("policy", *METRICS.values()), rows=rows, digits=3)
    remarks = [_LOG_REMARK] if is_decision_log(trace) else []
    return Report(tables=[table], checks=[], charts=[chart], remarks=remarks)


def replay_one(
    trace: Path,
    fleet: Path,
    policy: str,
    time_scale: float,
    block_tokens: int,
    max_in_flight: int,
    seed: int,
) -> dict[str, float]:
    """One policy's numbers."""
    described = read_fleet(fleet)
    sites = described.sites()
    if is_decision_log(trace):
        logged = LoggedAssessor(sites)
        assessor: MeasuredAssessor = logged
        arrivals = logged.arrivals(read_decisions(trace, time_scale=time_scale))
    else:
        assessor = MeasuredAssessor(sites)
        arrivals = read_trace(trace, time_scale=time_scale, block_tokens=block_tokens)
    virtual = VirtualFleet(sites, described.picker(policy), seed=seed, assessor=assessor)
    tally = Tally()
    replay_open(virtual, arrivals, tally.add, max_in_flight=max_in_flight)
    return tally.numbers()
