"""Documents found cached with reordering, where each topic has documents of its own.

Four document caches stand in for engines (see `laar_lab.workloads.rag`), with routing by prefix and
a bound on load. The paper's figures (4.6 to 34 % on MultihopRAG, 5.9 to 20.8 % on NarrativeQA) are
for requests known beforehand, clustered and scheduled (`lab/retired/context-plan.json`). The
published program finds 20 % of these documents.
"""

from __future__ import annotations

from laar_lab.claims import level
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sweep import grid
from laar_lab.workloads import rag

ENDPOINTS, CAPACITY_DOCS = 4, 750


def run(scope: Scope) -> Report:
    """Replay the load, one request at a time."""
    runs = grid(replayed, {"topic": ()}, scope.seeds, label="context-hits")
    return Report(evidence={"online-topic-750": {"": level(runs["topic"], "hit")}})


def replayed(seed: int) -> dict[str, float]:
    """Return the share of documents found cached."""
    done = rag.replay(
        rag.topic(seed), endpoints=ENDPOINTS, capacity_docs=CAPACITY_DOCS, reorder=True
    )
    return {"hit": done.hit}


EXPERIMENTS = declared(__name__, {"context-hits": run})
