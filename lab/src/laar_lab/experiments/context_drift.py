"""The hook over a long run in which topics come and go (ContextPilot, appendix C.1).

The backlog of `context-prefill`, longer, in fifths: every 20 requests one of fifty topics goes, and
a new one, with documents that were never seen, takes its place. So at the end hardly a document of
the beginning is asked for, and the hook's index has to follow. The paper's own load does not
drift: it finds 34 % cached where the baseline finds 7 %, from the beginning to the end.
"""

from __future__ import annotations

from laar_lab.claims import Claim, Seen, paired
from laar_lab.experiment import Experiment, Scope
from laar_lab.experiments.context_prefill import ENGINE, HOOK, RECEIVED, WORKERS, replay
from laar_lab.report import Chart, Report, Table, Value
from laar_lab.sim.fleet import Arrival, Exchange
from laar_lab.statistics import means
from laar_lab.sweep import grid
from laar_lab.workloads import rag
from laar_lab.workloads.rag_fleet import DOC_TOKENS

FIFTHS = 5
MORE = 2.0
KEPT = 0.9


def run(scope: Scope) -> Report:
    """The same load as received and with the hook."""
    requests = 500 if scope.quick else 5000
    ways = (RECEIVED, HOOK)
    cases = {way: (way, requests) for way in ways}
    runs = grid(run_way, cases, scope.seeds, label="context-drift")
    shares = {way: means(runs[way], map(str, range(FIFTHS))) for way in ways}
    names = [f"fifth {fifth + 1}" for fifth in range(FIFTHS)]
    rows: list[tuple[Value, ...]] = [(way, *shares[way]) for way in ways]
    return Report(
        tables=[
            Table(
                title=f"prompts found cached; 15 documents of {DOC_TOKENS} tokens, "
                f"{WORKERS} x {ENGINE}",
                columns=("documents", *names),
                rows=rows,
                digits=3,
            )
        ],
        charts=[
            Chart(
                title="Found cached while topics come and go",
                x_label="of the run",
                y_label="share of the prompts",
                x=names,
                series=shares,
            )
        ],
        evidence={
            "throughout": {
                name: paired(runs[HOOK], runs[RECEIVED], str(fifth))
                for fifth, name in enumerate(names)
            },
            "no-decay": {
                "last": Seen(
                    [one[str(FIFTHS - 1)] for one in runs[HOOK]], [one["1"] for one in runs[HOOK]]
                )
            },
        },
    )


def run_way(way: str, requests: int, seed: int) -> dict[str, float]:
    """One backlog on a fresh fleet: by fifth, the share of its prompts that was found cached."""
    cached, tokens = [0] * FIFTHS, [0] * FIFTHS

    def seen(arrival: Arrival, exchange: Exchange) -> None:
        fifth = int(arrival.kind) * FIFTHS // requests
        cached[fifth] += exchange.cached_tokens
        tokens[fifth] += exchange.prompt.prompt_tokens

    replay(rag.drifting(seed, requests=requests), way, seed, None, seen)
    return {str(fifth): cached[fifth] / tokens[fifth] for fifth in range(FIFTHS)}


CLAIMS = (
    Claim(
        name="throughout",
        says=f"In every fifth of the run {MORE:g} times as much of the prompts is cached",
        metric="share found cached with the hook / as received",
        effect="ratio",
        direction="above",
        bound=MORE,
        seeds=5,
        paper="ContextPilot, appendix C.1, figure 12",
        published="about 5 times (34 % for 7 %), from the beginning to the end; topics stay",
    ),
    Claim(
        name="no-decay",
        says="With the hook, the last fifth has at least nine tenths of the second's cached share",
        metric="share found cached in the last fifth / the second",
        effect="ratio",
        direction="above",
        bound=KEPT,
        seeds=5,
        paper="ContextPilot, appendix C.1, figure 12",
        published="the gain is no effect of the warm-up",
    ),
)

EXPERIMENTS = (
    Experiment(
        name="context-drift",
        has_figure=True,
        minutes=1.0,
        about="The hook's gain lasts while topics come and go",
        source="ContextPilot, appendix C.1, figure 12",
        run=run,
        claims=CLAIMS,
        seeds=5,
        quick_seeds=1,
    ),
)
