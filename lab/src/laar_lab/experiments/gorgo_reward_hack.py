"""The reward hack: without a load weight one endpoint gets everything, and TTFT hardly shows it.

Published: 100 % on one endpoint, p95 TTFT 3 % better, p95 end to end five times worse. It takes a
decode-bound engine that prefills first (`gorgo-hack`): one that is overloaded still gives quick
first tokens, and starves the requests that decode.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Claim, Seen, level, paired
from laar_lab.experiment import Experiment, Scope
from laar_lab.experiments.gorgo_runs import Run, results_table, run_all
from laar_lab.report import Report
from laar_lab.workloads.sessions import GORGO_CHATS

RATES = (3.1, 3.25, 3.4)
"""Requests a second, of which a sixth is too long and never sent: 2.6 to 2.9 that are."""

_HACKED = (("rtt_weight", 0.23), ("queue_weight", 0.0))
_RESTORED = (("rtt_weight", 0.23), ("queue_weight", 0.05))


def run(scope: Scope) -> Report:
    """The same traces with the load weight at zero and restored."""
    tables = []
    evidence: dict[str, dict[str, Seen]] = {claim.name: {} for claim in CLAIMS}
    for rate in RATES[: 1 if scope.quick else None]:
        base = Run(
            policy="gorgo",
            seed=0,
            time_scale=1.0,
            minutes=8.0 if scope.quick else 15.0,
            profile="gorgo-hack",
            shape=replace(GORGO_CHATS, requests_per_s=rate),
        )
        runs = {
            "load weight 0": [replace(base, seed=s, gorgo=_HACKED) for s in scope.seeds],
            "load weight 0.05": [replace(base, seed=s, gorgo=_RESTORED) for s in scope.seeds],
            "laar": [replace(base, policy="laar", seed=s) for s in scope.seeds],
        }
        results = run_all(runs, f"gorgo-reward-hack {rate:g}/s")
        tables.append(results_table(results, f"{rate:g} requests a second"))
        hacked, healthy = results["load weight 0"], results["load weight 0.05"]
        where = f"{rate:g}/s"
        evidence["piled-up"][where] = level(hacked, "near_share")
        evidence["restored"][where] = level(healthy, "concentration")
        evidence["ttft-likes-it"][where] = paired(hacked, healthy, "ttft_p95_s")
        evidence["answers-suffer"][where] = paired(hacked, healthy, "e2e_p95_s")
    return Report(tables=tables, evidence=evidence)


_PAPER = "GORGO, section 6, ablation of 2 April"
CLAIMS = (
    Claim(
        name="piled-up",
        says="With a load weight of 0 the nearest replica gets 98 % of the requests or more",
        metric="share of the nearest",
        effect="level",
        direction="above",
        bound=0.98,
        seeds=10,
        paper=_PAPER,
        published="100 %",
    ),
    Claim(
        name="restored",
        says="With the weight at 0.05 no replica gets more than 65 %",
        metric="share of the busiest",
        effect="level",
        direction="below",
        bound=0.65,
        seeds=10,
    ),
    Claim(
        name="ttft-likes-it",
        says="p95 TTFT hardly shows it: at most 10 % longer",
        metric="p95 TTFT at 0 / at 0.05",
        effect="ratio",
        direction="below",
        bound=1.10,
        seeds=10,
        paper=_PAPER,
        published="1.10 s against 1.14 s",
        why="The mean over the seeds is within 10 % at every load; on one replica p95 scatters by "
        "half from seed to seed, so ten seeds do not show it.",
    ),
    Claim(
        name="answers-suffer",
        says="p95 end to end is five times as long",
        metric="p95 end to end at 0 / at 0.05",
        effect="ratio",
        direction="above",
        bound=5.0,
        seeds=10,
        paper=_PAPER,
        published="12.6 s against 2.5 s",
    ),
)

EXPERIMENTS = (
    Experiment(
        name="gorgo-reward-hack",
        minutes=0.3,
        about="A load weight of zero sends all requests to one endpoint, and TTFT hardly shows it",
        source=_PAPER,
        run=run,
        claims=CLAIMS,
    ),
)
