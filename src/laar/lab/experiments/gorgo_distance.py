"""What the weight of the round trip buys and costs, from an idle fleet to a busy one.

1 is physical, and what a lone request wants. The default is far below: a conversation that moves is
prefilled anew, and the near replica gets too much. Shown on traffic that decides it either way,
against the default on the same seeds.
"""

from __future__ import annotations

from dataclasses import replace

from laar.core.cost import CostWeights
from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.gorgo_runs import Run, below, results_table, run_all
from laar.lab.report import Check, Report, Table, Value
from laar.lab.workloads.sessions import GORGO_CHATS, WILDCHAT

__all__ = ["EXPERIMENTS"]

_TRAFFIC = {
    "conversations, 4.6 a second": Run(policy="laar", seed=0, time_scale=1.0),
    "conversations, 3.1 a second": Run(policy="laar", seed=0, time_scale=1.5),
    "conversations, 2.3 a second": Run(policy="laar", seed=0, time_scale=2.0),
    "conversations, 0.8 a second": Run(policy="laar", seed=0, time_scale=6.0),
    "single questions, 5.7 a second": Run(
        policy="laar", seed=0, time_scale=2.0, minutes=4.0, shape=WILDCHAT
    ),
}
_DEFAULT = CostWeights()
_TRIED = (0.2, 1.0)
_SHOWN = {"ttft_p50_s": "TTFT p50", "ttft_p95_s": "TTFT p95", "e2e_p95_s": "E2E p95"}


def run(scope: Scope) -> Report:
    """Each weight on each kind of traffic."""
    tables = []
    rows: list[tuple[Value, ...]] = []
    changes: dict[tuple[str, float, str], float] = {}
    for traffic, base in _TRAFFIC.items():
        minutes = 2.0 if scope.quick else base.minutes
        runs = {
            f"k_rtt {k_rtt:g}": [
                replace(base, seed=seed, minutes=minutes, weights=replace(_DEFAULT, k_rtt=k_rtt))
                for seed in scope.seeds
            ]
            for k_rtt in (_DEFAULT.k_rtt, *_TRIED)
        }
        results = run_all(runs, f"gorgo-distance, {traffic}")
        tables.append(results_table(results, traffic))
        default = results[f"k_rtt {_DEFAULT.k_rtt:g}"]
        for k_rtt in _TRIED:
            for name in _SHOWN:
                less = below(results[f"k_rtt {k_rtt:g}"], [r[name] for r in default], name)
                changes[traffic, k_rtt, name] = -less.mean
            rows.append(
                (
                    f"{traffic}: {k_rtt:g}",
                    *(100 * changes[traffic, k_rtt, name] for name in _SHOWN),
                )
            )
    columns = ("k_rtt", *(f"{called} %" for called in _SHOWN.values()))
    title = f"Against the default, {_DEFAULT.k_rtt:g}"
    tables.append(Table(title=title, columns=columns, rows=rows, digits=1))
    talk = [t for t, base in _TRAFFIC.items() if base.shape is GORGO_CHATS]
    single = next(t for t in _TRAFFIC if t not in talk)
    tails = [changes[t, 1.0, "ttft_p95_s"] for t in talk]
    median = changes[single, 1.0, "ttft_p50_s"]
    return Report(
        tables=tables,
        checks=[
            Check(
                claim="k_rtt 1: p95 TTFT of conversations above the default's at every load",
                held=min(tails) > 0.0,
                seen=", ".join(f"{change:+.1%}" for change in tails),
            ),
            Check(
                claim="k_rtt 1: median TTFT of single questions at most half of the default's",
                held=median <= -0.5,
                seen=f"{median:+.1%}",
            ),
        ],
    )


EXPERIMENTS = (
    Experiment(
        name="gorgo-distance",
        claim="A physical weight of the round trip is for prompts that share little",
        source="GORGO section 3, the network term; decision 7",
        run=run,
        seeds=4,
    ),
)
