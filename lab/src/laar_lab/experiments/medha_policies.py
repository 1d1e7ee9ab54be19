"""Figure 13 of Medha: the order of prefills, with and without several prefills in a batch.

As in the paper (6.1), the rivals replace "the LARS request prioritization and multi-prefill
batching with standard FCFS/EDF/LRS scheduling" and keep the rest. SRPT is treated in the same way.
`lars alone` is LARS without multi-prefill batching. The paper compares times normalized by the
request's work and does not publish its deadlines; here a deadline is one second plus five times
the duration of a lone prefill.

From 1 request/s on, long prompts (26 s each) are by themselves more work than the engine can do.
The share of long requests within the objective therefore falls under every policy, and the share of
all requests under most. Under LARS a late long request stays more urgent than a short one with time
left, so short ones wait until they are equally late, and half of them narrowly miss their
objective. The paper gives no share of requests within a deadline for any order.

Arrivals last 15 minutes here and an hour in the paper, so queues are shorter. At 1 request/s hardly
any request is late by then on two of ten seeds, and EDF and LRS are slightly ahead of LARS (the
paper, too, calls EDF effective at low loads). The intervals of the ratios at this load therefore
span orders of magnitude. The gain from multi-prefill batching is smallest at 1.75 requests/s, and
varies: 1.8 times on average, with an interval from 1.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import percentile, run, with_slack
from laar_lab.report import Report
from laar_lab.sim.engine import EngineProfile, Work
from laar_lab.sim.engine.prefill_time import PrefillTable
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix, jobs

_RATES = (1.0, 1.25, 1.75)
_RIVALS = ("fcfs", "edf", "lrs")
_CONTESTANTS = ("medha", "lars alone", *_RIVALS, "srpt")


def _engine(contestant: str) -> EngineProfile:
    match contestant:
        case "medha":
            return with_slack("lars")
        case "lars alone":
            return with_slack("lars", multi_prefill=False)
        case order:
            return with_slack(order, multi_prefill=False)


def _alone_s(profile: EngineProfile) -> PrefillTable:
    """Return prefill times on an idle engine; with pipeline stages, chunks overlap."""
    cost, target_s = profile.cost, profile.settings.slack.target_s

    def chunk_s(chunk: int, context: int) -> float:
        work = Work()
        work.add_chunk(chunk, context)
        return cost.stage_s(work)

    return PrefillTable.build(chunk_s, target_s=target_s / cost.stages)


def outcome(contestant: str, mix: Mix, seed: int) -> dict[str, float]:
    """Run a contestant once; return its figures."""
    profile = _engine(contestant)
    seen = run(profile, mix, seed)
    slack = profile.settings.slack
    prompts = np.array([float(job.prompt_tokens) for job in jobs(mix, seed)])
    alone = _alone_s(profile).totals_s(prompts)
    within = seen.ttft_s <= slack.objective_base_s + slack.objective_factor * alone
    normalised = seen.ttft_s / alone
    return {
        "median": percentile(normalised, 50.0),
        "p90": percentile(normalised, 90.0),
        "within": float(within.mean()),
    }


def run_policies(scope: Scope) -> Report:
    """Run every order at every load."""
    rates = _RATES[::2] if scope.quick else _RATES
    duration_s = 300.0 if scope.quick else 900.0
    cases = {
        (contestant, rate): (contestant, Mix(rate=rate, duration_s=duration_s))
        for contestant, rate in product(_CONTESTANTS, rates)
    }
    runs = grid(outcome, cases, scope.seeds, label="medha-policies")
    return Report(evidence=_evidence(runs, rates))


def _evidence(
    runs: Mapping[tuple[str, float], list[dict[str, float]]], rates: Sequence[float]
) -> Evidence:
    def by_load(ours: str, theirs: str, what: str) -> dict[str, Seen]:
        return {f"{rate:g}/s": paired(runs[ours, rate], runs[theirs, rate], what) for rate in rates}

    return {
        # The 90th percentile is compared, as half of the requests never meet a convoy.
        **{f"p90-{rival}": by_load(rival, "medha", "p90") for rival in _RIVALS},
        **{f"goodput-{rival}": by_load("medha", rival, "within") for rival in ("edf", "srpt")},
        "batching": by_load("lars alone", "medha", "median"),
    }


EXPERIMENTS = declared(__name__, {"medha-policies": run_policies})
