"""Reordering and routing need each other: the same loads on 4 and 8 document caches.

One index of orders serves the whole fleet (ContextPilot, section 4), with and without routing by
prefix. Under round-robin every endpoint caches every order, which leaves room for fewer documents.
"""

from __future__ import annotations

from laar_lab.claims import level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_hits import LOADS
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import mean
from laar_lab.sweep import grid
from laar_lab.workloads import rag

_LOADS = ("topic", "zipf 1.0")
_FLEETS = ((4, 750), (4, 3000), (8, 750))
_WAYS: dict[str, tuple[bool, rag.Routing]] = {
    "as received, round-robin": (False, "round-robin"),
    "as received, by prefix": (False, "prefix"),
    "hook, round-robin": (True, "round-robin"),
    "hook, by prefix": (True, "prefix"),
}
_BEST, _UNROUTED = "hook, by prefix", "hook, round-robin"


def run(scope: Scope) -> Report:
    """Replay both loads on all fleets in four ways."""
    fleets = _FLEETS[:1] if scope.quick else _FLEETS
    places = {f"{load}, {n} x {held}": (load, (n, held)) for load in _LOADS for n, held in fleets}
    cases = {(name, way): (*place, way) for name, place in places.items() for way in _WAYS}
    runs = grid(run_fleet, cases, scope.seeds, label="context-endpoints")
    rows: list[tuple[Value, ...]] = [
        (way, *(mean(runs[name, way], "hit") for name in places)) for way in _WAYS
    ]
    skews = [mean(runs[name, _BEST], "skew") for name in places]
    table = Table(
        title="Documents found cached, by endpoints x documents held",
        columns=("", *places),
        rows=[*rows, ("busiest/mean in the last row", *skews)],
        digits=3,
    )
    return Report(
        tables=[table],
        evidence={
            "round-robin-loses": {
                name: paired(runs[name, _UNROUTED], runs[name, _BEST], "hit") for name in places
            },
            "balanced": {name: level(runs[name, _BEST], "skew") for name in places},
        },
    )


def run_fleet(load: str, fleet: tuple[int, int], way: str, seed: int) -> dict[str, float]:
    """Return the documents' hit rate, and the busiest endpoint's load relative to the mean."""
    reorder, routing = _WAYS[way]
    endpoints, capacity_docs = fleet
    done = rag.replay(
        LOADS[load](seed),
        endpoints=endpoints,
        capacity_docs=capacity_docs,
        reorder=reorder,
        routing=routing,
    )
    return {"hit": done.hit, "skew": done.skew}


EXPERIMENTS = declared(__name__, {"context-endpoints": run})
