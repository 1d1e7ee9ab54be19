"""Figure 10 of Medha: time between tokens by load, with and without long prompts.

Medha and Sarathi as the paper sets them up on 16 A100 (TP-8 and two stages). LoongServe's loss,
five times the time between tokens, comes from devices that its elastic groups fragment; the engine
model has no such groups, so that factor is not looked for.
"""

from __future__ import annotations

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, SARATHI, percentile, run
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import estimate
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_RATES = (0.25, 0.75, 1.25, 1.75)
_SYSTEMS = {"medha": MEDHA, "sarathi": SARATHI}
_LONG_SHARES = {"short alone": 0.0, "5 % long": 0.05}
_PERCENTS = (50.0, 90.0, 99.0)
_Figures = tuple[float, float, float]


def tpot(profile: str, mix: Mix, seed: int) -> _Figures:
    """Median, 90th and 99th percentile of the time between tokens, seconds."""
    seen = run(profile, mix, seed).tpot_s
    median, p90, p99 = (percentile(seen, percent) for percent in _PERCENTS)
    return median, p90, p99


def run_tpot(scope: Scope) -> Report:
    """Both systems at every load."""
    duration_s = 60.0 if scope.quick else 180.0
    rates = (_RATES[0], _RATES[-1]) if scope.quick else _RATES
    cases = {
        (load, rate, system): (profile, Mix(rate=rate, duration_s=duration_s, long_share=share))
        for load, share in _LONG_SHARES.items()
        for rate in rates
        for system, profile in _SYSTEMS.items()
    }
    figures = grid(tpot, cases, scope.seeds, label="medha-tpot")

    def ms(load: str, system: str, rate: float, what: int) -> list[float]:
        return [1e3 * one[what] for one in figures[load, rate, system]]

    rows: list[tuple[Value, ...]] = [
        (f"{load}, {rate:g}/s, {system}", *(estimate(ms(load, system, rate, n)) for n in range(3)))
        for load, rate, system in cases
    ]
    short, long = _LONG_SHARES
    return Report(
        tables=[
            Table(
                title="ms between tokens",
                columns=("load", "median", "90 %", "99 %"),
                rows=rows,
                digits=1,
            )
        ],
        evidence={
            "sarathi-second": {"": Seen(ms(long, "sarathi", rates[-1], 2))},
            "below-sarathi": {
                f"{rate:g}/s": Seen(ms(long, "medha", rate, 1), ms(long, "sarathi", rate, 1))
                for rate in rates
            },
            "consistent": {
                f"{rate:g}/s": Seen(ms(long, "medha", rate, 1), ms(short, "medha", rate, 1))
                for rate in rates
            },
        },
    )


EXPERIMENTS = declared(__name__, {"medha-tpot": run_tpot})
