"""Prefill throughput with 3 to 15 documents per prompt (ContextPilot, figure 9).

The backlog of `context-prefill` runs on four engines. A topic has two more documents than a prompt
holds, and one in five documents of a prompt is off topic. The paper reports 1.5 to 2.0 times the
throughput on MultihopRAG and 1.3 to 1.6 times on NarrativeQA, at every length.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_prefill import ENGINE, HOOK, RECEIVED, WORKERS, replay
from laar_lab.report import Chart, Report, Table
from laar_lab.statistics import means, times
from laar_lab.sweep import grid
from laar_lab.workloads import rag
from laar_lab.workloads.rag_fleet import DOC_TOKENS

DEPTHS = (3, 5, 10, 15)


def run(scope: Scope) -> Report:
    """Run with each number of documents, as received and with the hook."""
    requests = 200 if scope.quick else 600
    cases = {key: (*key, requests) for key in product(DEPTHS, (RECEIVED, HOOK))}
    runs = grid(run_depth, cases, scope.seeds, label="context-depth")
    faster = {
        docs: times(runs[docs, HOOK], runs[docs, RECEIVED], "prompts_per_s") for docs in DEPTHS
    }
    table = Table(
        title=f"documents of {DOC_TOKENS} tokens, {WORKERS} x {ENGINE}",
        columns=("documents", "found cached", "prompts/s per engine", "times as fast"),
        rows=[
            (
                f"{docs}, {way}",
                *means(runs[docs, way], ("hit_rate", "prompts_per_s")),
                faster[docs] if way == HOOK else "",
            )
            for docs, way in cases
        ],
        digits=3,
    )
    chart = Chart(
        title="Prefill speed by documents per prompt",
        x_label="documents",
        y_label="speed / speed as received",
        x=[str(docs) for docs in DEPTHS],
        series={HOOK: [faster[docs] for docs in DEPTHS]},
        kind="bars",
    )
    every = {
        str(docs): paired(runs[docs, HOOK], runs[docs, RECEIVED], "prompts_per_s")
        for docs in DEPTHS
    }
    return Report(tables=[table], charts=[chart], evidence={"every-depth": every})


def run_depth(docs: int, way: str, requests: int, seed: int) -> dict[str, float]:
    """Run a backlog on a fresh fleet."""
    load = rag.topic(seed, requests=requests, docs=docs, noise=docs // 5, topic_docs=docs + 2)
    backlog = replay(load, way, seed, None)
    return {
        "hit_rate": backlog.cached_tokens / backlog.prompt_tokens,
        "prompts_per_s": requests / (backlog.last_s - backlog.first_s) / WORKERS,
    }


EXPERIMENTS = declared(__name__, {"context-depth": run})
