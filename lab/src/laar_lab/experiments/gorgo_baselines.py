"""The default policy against all baselines: conversations at three loads, and a load without reuse.

Product settings on both sides: scrapes every second, probes every five, which flatters the
baselines that live on scraped numbers (GORGO's proxy reads every 30 s). True session affinity gets
the session's name, and `lmetric` nothing to tune. Half an hour, as GORGO's windows are: of shorter
traces a 95th percentile says little about differences of some percent. Shown with any result.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import Run, Runs, below, results_table, run_all
from laar_lab.report import Report, Table, Value
from laar_lab.workloads.sessions import WILDCHAT

_OURS = "laar"
_LOADS = (1.0, 1.5, 2.0)
_BASELINES = (
    "gorgo",
    "load-aware",
    "llm-d",
    "llm-router",
    "aibrix-prefix-cache",
    "sglang-cache-aware",
    "lmetric",
    "least-request",
    "least-load",
    "simple-session-affinity",
    "session-affinity",
    "least-loaded",
    "round-robin",
    "random",
)
"""no-regret has llm-d's guide, SMG, vLLM's router and p2c as well."""
_QUICK = ("lmetric", "session-affinity", "sglang-cache-aware")
_NAMES = {"ttft_p95_s": "p95 TTFT", "e2e_p95_s": "p95 E2E"}


def run(scope: Scope) -> Report:
    """Every policy at every load."""
    baselines = _QUICK if scope.quick else _BASELINES
    tables: list[Table] = []
    evidence: dict[str, dict[str, Seen]] = {}
    for time_scale in (1.5,) if scope.quick else _LOADS:
        base = Run(
            policy=_OURS, seed=0, time_scale=time_scale, minutes=6.0 if scope.quick else 30.0
        )
        results = _results(base, baselines, scope, f"gorgo-baselines x{time_scale:g}")
        tables.append(results_table(results, f"conversations, time x {time_scale:g}"))
        tables.append(_wins(results, baselines, f"time x {time_scale:g}"))
        for name, called in _NAMES.items():
            evidence[_claim_name(f"x{time_scale:g}", called)] = {
                other: paired(results[_OURS], results[other], name) for other in baselines
            }
    base = Run(
        policy=_OURS,
        seed=0,
        time_scale=2.0,
        minutes=3.0 if scope.quick else 6.0,
        shape=WILDCHAT,
    )
    results = _results(base, baselines, scope, "gorgo-baselines low reuse")
    tables.append(results_table(results, "single questions, time x 2"))
    for name, called in _NAMES.items():
        evidence[_claim_name("low-reuse", called)] = {
            other: paired(results[_OURS], results[other], name) for other in baselines
        }
    return Report(tables=tables, evidence=evidence)


def _claim_name(where: str, called: str) -> str:
    return f"{where}-{called.replace(' ', '-').lower()}"


def _results(base: Run, baselines: tuple[str, ...], scope: Scope, label: str) -> Runs:
    runs = {
        policy: [replace(base, policy=policy, seed=seed) for seed in scope.seeds]
        for policy in (_OURS, *baselines)
    }
    return run_all(runs, label)


def _won(results: Runs, other: str, name: str) -> int:
    pairs = zip(results[_OURS], results[other], strict=True)
    return sum(ours[name] < theirs[name] for ours, theirs in pairs)


def _wins(results: Runs, baselines: tuple[str, ...], where: str) -> Table:
    """The number of seeds in which ours is lower, and its mean gain, per cent."""
    rows: list[tuple[Value, ...]] = []
    for other in baselines:
        row: list[Value] = [other]
        for name in _NAMES:
            theirs = [run[name] for run in results[other]]
            row += [_won(results, other, name), 100 * below(results[_OURS], theirs, name).mean]
        rows.append(tuple(row))
    columns = tuple(f"{called}, {what}" for called in _NAMES.values() for what in ("won", "% less"))
    return Table(
        title=f"laar against each, {where}", columns=("baseline", *columns), rows=rows, digits=1
    )


EXPERIMENTS = declared(__name__, {"gorgo-baselines": run})
