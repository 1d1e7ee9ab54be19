"""Loads on which GORGO loses in its paper: templates that many users share, and short prompts.

WildChat has 2,925 tokens per prompt, a third of them in templates shared by many users; LMSYS-Chat
has 467 tokens, 3 % of them seen before. Single questions are sent to the three endpoints, to see
whether the paper's weights for that load lose here too, and whether laar ever does.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import PAPER_WILDCHAT, Run, by_policy, run_all
from laar_lab.report import Report
from laar_lab.workloads.sessions import WILDCHAT

_SHAPES = {
    "templates": replace(
        WILDCHAT,
        requests_per_s=5.7,
        first_log=(7.07, 1.0),
        template_share=0.95,
        templates=20,
        template_tokens=1024,
    ),
    "short": replace(
        WILDCHAT, requests_per_s=8.0, first_log=(5.6, 1.0), template_share=0.0, header_tokens=16
    ),
}
_AFFINITY = "simple-session-affinity"
_RIVALS = ("gorgo", _AFFINITY, "least-request", "least-load")


def run(scope: Scope) -> Report:
    """Run both kinds of prompts."""
    evidence: dict[str, dict[str, Seen]] = {}
    laar: dict[str, Seen] = {}
    for name, shape in _SHAPES.items():
        base = Run(minutes=1.0 if scope.quick else 3.0, shape=shape, gorgo=PAPER_WILDCHAT)
        runs = by_policy(base, ("laar", *_RIVALS), scope.seeds)
        results = run_all(runs, f"gorgo-short, {name}")
        evidence[f"{name}-affinity"] = {
            "": paired(results["gorgo"], results[_AFFINITY], "ttft_p95_s")
        }
        laar |= {
            f"{name}, {rival}": paired(results["laar"], results[rival], "ttft_p95_s")
            for rival in _RIVALS
        }
    return Report(evidence=evidence | {"laar": laar})


EXPERIMENTS = declared(__name__, {"gorgo-short": run})
