"""Figure 1 of Medha: the effect of a few long prompts on the first tokens of all requests.

The non-preemptive system is the paper's LoongServe without its elastic groups: whole prompts, one
after the other, on all 16 devices as two plain stages. That makes a lone long prompt twice as slow
as with a stream pipeline, as context parallelism over two servers would not; the ratio is so large
that the claim holds without it (the row `sarathi` has the same plain pipeline and chunks).

At this load neither of them is stable (see `medha-capacity`), so their times, and the ratios, grow
with the length of the run; Medha's do not.
"""

from __future__ import annotations

from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import (
    MEDHA,
    NON_PREEMPTIVE,
    SARATHI,
    Latencies,
    Ratio,
    over,
    percentile,
    run,
)
from laar_lab.report import Chart, Report, Table, Value
from laar_lab.statistics import Estimate, estimate
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_RATE = 0.75
_SHARES = (0.0, 0.01, 0.03, 0.05)
_SYSTEMS = {"medha": MEDHA, "sarathi": SARATHI, "non-preemptive": NON_PREEMPTIVE}
_PERCENTS = (50.0, 90.0, 99.0)
_Runs = dict[tuple[str, float], list[Latencies]]


def run_convoy(scope: Scope) -> Report:
    """Every system at every share of long requests."""
    duration_s = 300.0 if scope.quick else 1200.0
    cases = {
        (system, share): (profile, Mix(rate=_RATE, duration_s=duration_s, long_share=share))
        for system, profile in _SYSTEMS.items()
        for share in _SHARES
    }
    runs = grid(run, cases, scope.seeds, label="medha-convoy")
    rows: list[tuple[Value, ...]] = [
        (f"{system}, {share:.0%} long", *(_all(runs[system, share], p) for p in _PERCENTS))
        for system, share in cases
    ]
    return Report(
        tables=[
            Table(
                title=f"Seconds to the first token, all requests, {_RATE} requests/s",
                columns=("system", "p50", "p90", "p99"),
                rows=rows,
            ),
            _ratios(runs),
        ],
        evidence=_evidence(runs),
        charts=[
            Chart(
                title="p90 of the time to the first token",
                x_label="share of long requests",
                y_label="seconds",
                x=list(_SHARES),
                series={s: [_all(runs[s, share], 90.0) for share in _SHARES] for s in _SYSTEMS},
            )
        ],
    )


def _all(seen: list[Latencies], percent: float) -> Estimate:
    return estimate([percentile(one.ttft_s, percent) for one in seen])


def _times(runs: _Runs, system: str, percent: float, *, shorts: bool) -> Ratio:
    def values(name: str) -> list[float]:
        return [
            percentile(one.short_ttft_s if shorts else one.ttft_s, percent)
            for one in runs[name, _SHARES[-1]]
        ]

    return over(values("medha"), values(system))


def _ratios(runs: _Runs) -> Table:
    rows: list[tuple[Value, ...]] = [
        (f"{system}, {name}", *(str(_times(runs, system, p, shorts=shorts)) for p in _PERCENTS))
        for system in ("sarathi", "non-preemptive")
        for name, shorts in (("short requests", True), ("all requests", False))
    ]
    return Table(
        title=f"Times Medha's, {_SHARES[-1]:.0%} long",
        columns=("system", "p50", "p90", "p99"),
        rows=rows,
    )


def _evidence(runs: _Runs) -> Evidence:
    def shorts(percent: float) -> Seen:
        theirs, ours = (
            [percentile(one.short_ttft_s, percent) for one in runs[name, _SHARES[-1]]]
            for name in ("non-preemptive", "medha")
        )
        return Seen(theirs, ours)

    return {
        "median": {"": shorts(50.0)},
        "tail": {"": shorts(99.0)},
        "stays-short": {
            f"{share:.0%} long": Seen(
                [percentile(one.ttft_s, 90.0) for one in runs["medha", share]]
            )
            for share in _SHARES
        },
    }


EXPERIMENTS = declared(__name__, {"medha-convoy": run_convoy})
