"""Figure 10 of Medha: TPOT by load, with and without long prompts.

Medha and Sarathi run as in the paper, on 16 A100s (TP-8 and two stages). LoongServe has five times
the TPOT in the paper because its elastic groups fragment the devices. The engine model has no such
groups, so that factor is not tested.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, SARATHI, percentile, run
from laar_lab.report import Report, means_table
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_RATES = (0.25, 0.75, 1.25, 1.75)
_SYSTEMS = {"medha": MEDHA, "sarathi": SARATHI}
_LONG_SHARES = {"short alone": 0.0, "5 % long": 0.05}
_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
_SHOWN = {"p50": "median", "p90": "90 %", "p99": "99 %"}


def tpot(profile: str, mix: Mix, seed: int) -> dict[str, float]:
    """Return percentiles of TPOT in ms."""
    seen = run(profile, mix, seed).tpot_s
    return {name: 1e3 * percentile(seen, percent) for name, percent in _PERCENTS.items()}


def run_tpot(scope: Scope) -> Report:
    """Run both systems at every load."""
    duration_s = 60.0 if scope.quick else 180.0
    rates = (_RATES[0], _RATES[-1]) if scope.quick else _RATES
    cases = {
        (load, rate, system): (
            _SYSTEMS[system],
            Mix(rate=rate, duration_s=duration_s, long_share=_LONG_SHARES[load]),
        )
        for load, rate, system in product(_LONG_SHARES, rates, _SYSTEMS)
    }
    runs = grid(tpot, cases, scope.seeds, label="medha-tpot")
    named = {f"{load}, {rate:g}/s, {system}": of for (load, rate, system), of in runs.items()}
    short, long = _LONG_SHARES
    return Report(
        tables=[means_table("ms between tokens", "load", named, _SHOWN, digits=1)],
        evidence={
            "sarathi-second": {"": level(runs[long, rates[-1], "sarathi"], "p99")},
            "below-sarathi": {
                f"{rate:g}/s": paired(runs[long, rate, "medha"], runs[long, rate, "sarathi"], "p90")
                for rate in rates
            },
            "consistent": {
                f"{rate:g}/s": paired(runs[long, rate, "medha"], runs[short, rate, "medha"], "p90")
                for rate in rates
            },
        },
    )


EXPERIMENTS = declared(__name__, {"medha-tpot": run_tpot})
