"""The hook over a long run in which topics come and go (ContextPilot, appendix C.1).

A longer backlog of `context-prefill` is run and reported in fifths. After every 20 requests one of
fifty topics is replaced by a new one with unseen documents. By the end hardly any of the initial
documents are requested, so the hook's index has to keep up. The paper's load does not drift: 34 %
is found cached throughout, compared with 7 % for the baseline.
"""

from __future__ import annotations

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_prefill import ENGINE, HOOK, RECEIVED, WORKERS, replay
from laar_lab.report import Chart, Report, means_table
from laar_lab.sim.fleet import Arrival, Exchange
from laar_lab.statistics import means
from laar_lab.sweep import grid
from laar_lab.workloads import rag
from laar_lab.workloads.rag_fleet import DOC_TOKENS

FIFTHS = 5


def run(scope: Scope) -> Report:
    """Run the same load as received and with the hook."""
    requests = 500 if scope.quick else 5000
    cases = {way: (way, requests) for way in (RECEIVED, HOOK)}
    runs = grid(run_way, cases, scope.seeds, label="context-drift")
    shown = {str(fifth): f"fifth {fifth + 1}" for fifth in range(FIFTHS)}
    title = f"share of prompts cached; 15 documents of {DOC_TOKENS} tokens, {WORKERS} x {ENGINE}"
    chart = Chart(
        title="Share of the prompts cached while topics come and go",
        x_label="of the run",
        y_label="share of the prompts",
        x=list(shown.values()),
        series={way: means(of, shown) for way, of in runs.items()},
    )
    second, last = ([one[fifth] for one in runs[HOOK]] for fifth in ("1", str(FIFTHS - 1)))
    return Report(
        tables=[means_table(title, "documents", runs, shown, digits=3)],
        charts=[chart],
        evidence={
            "throughout": {
                name: paired(runs[HOOK], runs[RECEIVED], fifth) for fifth, name in shown.items()
            },
            "no-decay": {"last": Seen(last, second)},
        },
    )


def run_way(way: str, requests: int, seed: int) -> dict[str, float]:
    """Run a backlog on a fresh fleet; return the share of prompt tokens found cached, by fifth."""
    cached, tokens = [0] * FIFTHS, [0] * FIFTHS

    def seen(arrival: Arrival, exchange: Exchange) -> None:
        fifth = int(arrival.kind) * FIFTHS // requests
        cached[fifth] += exchange.cached_tokens
        tokens[fifth] += exchange.prompt.prompt_tokens

    replay(rag.drifting(seed, requests=requests), way, seed, None, seen)
    return {str(fifth): cached[fifth] / tokens[fifth] for fifth in range(FIFTHS)}


EXPERIMENTS = declared(__name__, {"context-drift": run})
