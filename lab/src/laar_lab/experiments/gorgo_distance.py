"""Gains and costs of the round-trip weight, from an idle fleet to a busy one.

A weight of 1 prices a second of round trip as a second. This has been the default since decision
0014. The cost now charges a conversation for everything that moving it costs, so distance no longer
needs a lower weight. The default is compared with lower weights on the same seeds, on the traffic
on which they improved the earlier cost (decision 0007).
"""

from __future__ import annotations

from dataclasses import replace

from laar.core.cost import CostWeights
from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import Run, below, on_seeds, results_table, run_all
from laar_lab.report import Report, Table, Value
from laar_lab.workloads.sessions import WILDCHAT

_CHATS = {4.6: 1.0, 3.1: 1.5, 2.3: 2.0, 0.8: 6.0}
"""Requests per second of conversations, and the time scale of the trace that yields this rate."""
_TRAFFIC = {
    **{
        f"conversations, {rate} a second": Run(policy="laar", time_scale=scale)
        for rate, scale in _CHATS.items()
    },
    "single questions, 5.7 a second": Run(
        policy="laar", time_scale=2.0, minutes=4.0, shape=WILDCHAT
    ),
}
_DEFAULT = CostWeights()
_TRIED = (0.05, 0.3)
_SHOWN = {"ttft_p50_s": "TTFT p50", "ttft_p95_s": "TTFT p95", "e2e_p95_s": "E2E p95"}


def run(scope: Scope) -> Report:
    """Run with each weight on each kind of traffic."""
    tables = []
    rows: list[tuple[Value, ...]] = []
    evidence: dict[str, dict[str, Seen]] = {"whole-answers": {}, "first-tokens": {}}
    for traffic, base in _TRAFFIC.items():
        minutes = 2.0 if scope.quick else base.minutes
        runs = {
            f"k_rtt {k_rtt:g}": on_seeds(
                base, scope.seeds, minutes=minutes, weights=replace(_DEFAULT, k_rtt=k_rtt)
            )
            for k_rtt in (_DEFAULT.k_rtt, *_TRIED)
        }
        results = run_all(runs, f"gorgo-distance, {traffic}")
        tables.append(results_table(results, traffic))
        default = results[f"k_rtt {_DEFAULT.k_rtt:g}"]
        for k_rtt in _TRIED:
            tried, part = results[f"k_rtt {k_rtt:g}"], f"{traffic}, k_rtt {k_rtt:g}"
            evidence["whole-answers"][part] = paired(tried, default, "e2e_p95_s")
            evidence["first-tokens"][part] = paired(tried, default, "ttft_p95_s")
            changes = [-below(tried, default, name).mean for name in _SHOWN]
            rows.append((f"{traffic}: {k_rtt:g}", *(100 * change for change in changes)))
    columns = ("k_rtt", *(f"{called} %" for called in _SHOWN.values()))
    title = f"Against the default, {_DEFAULT.k_rtt:g}"
    tables.append(Table(title=title, columns=columns, rows=rows, digits=1))
    return Report(tables=tables, evidence=evidence)


EXPERIMENTS = declared(__name__, {"gorgo-distance": run})
