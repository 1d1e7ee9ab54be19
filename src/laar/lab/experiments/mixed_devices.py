"""One model on fast and on slow devices, and nothing that says which is which.

Half of the endpoints need three times as long for everything, under one model's name and without
labels: what a second batch of older accelerators does to a pool. The oracle is the same policy on
the same load where the two kinds are two models, either of which may answer, whose speeds were
measured: it prices each endpoint by its own speed from the first request on. So what separates the
two is only what the picker has to find out while it serves. The first fifth,
some 300 requests, is not counted.
"""

from __future__ import annotations

from dataclasses import replace

from laar.lab.experiment import Experiment, Scope
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Check, Report, Table, Value
from laar.lab.suite import fleets
from laar.lab.suite.case import Case, Numbers
from laar.lab.suite.runs import OURS, run_all
from laar.lab.suite.table import SUITE
from laar.sim.fleet import Site

__all__ = ["EXPERIMENTS"]

_LIMIT = 0.05
_METRICS = {"ttft_mean_s": "mean TTFT", "ttft_p95_s": "p95 TTFT", "e2e_mean_s": "mean E2E"}
_POLICIES = (OURS, "lmetric", "least-loaded")
_KNOWN = "mixed-devices, speeds known"


def _known_speeds() -> list[Site]:
    """The same devices, each kind with a model of its own."""
    sites = _UNKNOWN.fleet()
    kinds = {site.engine.cost: site.name for site in reversed(sites)}
    return [replace(site, model=f"on {kinds[site.engine.cost]}") for site in sites]


def run(scope: Scope) -> Report:
    """The default with and without knowledge, and two rules that have none."""
    share = 0.3 if scope.quick else 1.0
    policies = scope.policies or _POLICIES
    results = run_all((_UNKNOWN,), policies, scope.seeds, "mixed-devices", share=share)
    oracle = run_all((_ORACLE,), (policies[0],), scope.seeds, "with speeds known", share=share)
    contestants = {"oracle: speeds known": oracle[_KNOWN][policies[0]], **results[_UNKNOWN.name]}
    rows: list[tuple[Value, ...]] = [
        (name, *(estimate([one[metric] for one in runs]) for metric in _METRICS))
        for name, runs in contestants.items()
    ]
    return Report(
        tables=[
            Table(
                title="one model on 4 fast and 4 three times slower devices, s",
                columns=("policy", *_METRICS.values()),
                rows=rows,
                digits=3,
            )
        ],
        checks=[
            _check(metric, results[_UNKNOWN.name][policies[0]], oracle[_KNOWN][policies[0]])
            for metric in _METRICS
        ],
    )


def _check(metric: str, ours: list[Numbers], oracles: list[Numbers]) -> Check:
    more: Estimate = estimate(
        [a[metric] / b[metric] - 1.0 for a, b in zip(ours, oracles, strict=True)]
    )
    return Check(
        claim=f"{_METRICS[metric]} at most {_LIMIT:.0%} above the oracle's",
        held=more.mean <= _LIMIT,
        seen=f"{more.mean:+.1%} ({more.low:+.1%} .. {more.high:+.1%})",
    )


_UNKNOWN: Case = next(case for case in SUITE if case.name == "mixed-devices")
_ORACLE = replace(
    _UNKNOWN, name=_KNOWN, like=_UNKNOWN.name, fleet=_known_speeds, knowledge=fleets.measured
)

EXPERIMENTS = (
    Experiment(
        name="mixed-devices",
        claim="Devices of two speeds behind one model, unlabelled, cost next to nothing",
        source="no paper's; docs/decisions/0013",
        run=run,
        takes=frozenset({"policies"}),
    ),
)
