"""Figure 1 of Medha: the effect of a few long prompts on the TTFT of all requests.

The non-preemptive system is the paper's LoongServe without its elastic groups: whole prompts, one
after the other, on all 16 devices as two plain stages. This makes a lone long prompt twice as slow
as with a stream pipeline, or with context parallelism over two servers. The ratio is so large that
the claim holds anyway.

It is not stable at this load (`lab/retired/medha-capacity.json`), so its times and the
ratios grow with the length of the run. Medha's times do not.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import Seen, level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, NON_PREEMPTIVE, percentile, run
from laar_lab.report import Report
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_RATE = 0.75
_SHARES = (0.0, 0.01, 0.03, 0.05)
_SYSTEMS = {"medha": MEDHA, "non-preemptive": NON_PREEMPTIVE}
_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def first_tokens(profile: str, mix: Mix, seed: int) -> dict[str, float]:
    """Return percentiles of TTFT in seconds, for all and for short requests."""
    seen = run(profile, mix, seed)
    return {p: percentile(seen.ttft_s, percent) for p, percent in _PERCENTS.items()} | {
        f"short {p}": percentile(seen.short_ttft_s, percent) for p, percent in _PERCENTS.items()
    }


def run_convoy(scope: Scope) -> Report:
    """Run every system at every share of long requests."""
    duration_s = 300.0 if scope.quick else 1200.0
    cases = {
        (system, share): (
            _SYSTEMS[system],
            Mix(rate=_RATE, duration_s=duration_s, long_share=share),
        )
        for system, share in product(_SYSTEMS, _SHARES)
    }
    runs = grid(first_tokens, cases, scope.seeds, label="medha-convoy")

    def longer(system: str, name: str) -> Seen:
        """Return a system's figure paired with Medha's, at the largest share of long requests."""
        return paired(runs[system, _SHARES[-1]], runs["medha", _SHARES[-1]], name)

    return Report(
        evidence={
            "median": {"": longer("non-preemptive", "short p50")},
            "tail": {"": longer("non-preemptive", "short p99")},
            "stays-short": {
                f"{share:.0%} long": level(runs["medha", share], "p90") for share in _SHARES
            },
        },
    )


EXPERIMENTS = declared(__name__, {"medha-convoy": run_convoy})
