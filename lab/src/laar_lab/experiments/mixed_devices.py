"""One model on fast and slow devices, without labels to distinguish them.

Half of the endpoints take three times as long for everything, under the same model name and without
labels, as if a batch of older accelerators had been added. The oracle is the same policy on the
same load, but sees the two kinds as two models with measured speeds, either of which may answer.
It therefore prices each endpoint by its true speed from the first request on; the default has to
learn the speeds while serving. The first fifth, about 300 requests, is not counted.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, means_table
from laar_lab.sim.fleet import Site
from laar_lab.suite import fleets
from laar_lab.suite.case import Case
from laar_lab.suite.runs import OURS, run_all
from laar_lab.suite.table import SUITE

_METRICS = {"ttft_mean_s": "mean TTFT", "ttft_p95_s": "p95 TTFT", "e2e_mean_s": "mean E2E"}
_POLICIES = (OURS, "lmetric", "least-loaded")
_KNOWN = "mixed-devices, speeds known"


def _known_speeds() -> list[Site]:
    """Return the same devices, with a separate model for each kind."""
    sites = _UNKNOWN.fleet()
    kinds = {site.engine.cost: site.name for site in reversed(sites)}
    return [replace(site, model=f"on {kinds[site.engine.cost]}") for site in sites]


def run(scope: Scope) -> Report:
    """Run the default with speeds known and unknown, and two rules that ignore speeds."""
    share = 0.3 if scope.quick else 1.0
    policies = scope.policies or _POLICIES
    results = run_all((_UNKNOWN,), policies, scope.seeds, "mixed-devices", share=share)
    oracle = run_all((_ORACLE,), (policies[0],), scope.seeds, "with speeds known", share=share)
    contestants = {"oracle: speeds known": oracle[_KNOWN][policies[0]], **results[_UNKNOWN.name]}
    title = "one model on 4 fast and 4 three times slower devices, s"
    return Report(
        tables=[means_table(title, "policy", contestants, _METRICS, digits=3)],
        evidence={
            _slug(metric): {
                "": paired(results[_UNKNOWN.name][policies[0]], oracle[_KNOWN][policies[0]], metric)
            }
            for metric in _METRICS
        },
    )


def _slug(metric: str) -> str:
    return _METRICS[metric].replace(" ", "-").lower()


_UNKNOWN: Case = next(case for case in SUITE if case.name == "mixed-devices")
_ORACLE = replace(
    _UNKNOWN, name=_KNOWN, like=_UNKNOWN.name, fleet=_known_speeds, knowledge=fleets.measured
)


EXPERIMENTS = declared(__name__, {"mixed-devices": run})
