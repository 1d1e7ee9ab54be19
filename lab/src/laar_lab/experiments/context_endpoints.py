"""Reordering and routing need each other: the same loads on 4 and 8 document caches.

One index of orders for the whole fleet (ContextPilot, section 4), with and without routing by
prefix. Under round-robin each endpoint sees every order, holds it in its own cache, and has less
room for the others.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_hits import LOADS
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import Estimate, estimate
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
_Key = tuple[str, tuple[int, int], str]
_Runs = dict[_Key, list[tuple[float, float]]]


def run(scope: Scope) -> Report:
    """Replays both loads on all fleets, four ways."""
    fleets = _FLEETS[:1] if scope.quick else _FLEETS
    cases = {key: key for key in product(_LOADS, fleets, _WAYS)}
    runs = grid(run_fleet, cases, scope.seeds, label="context-endpoints")
    return Report(tables=[_table(runs, fleets)], evidence=_evidence(runs, fleets))


def run_fleet(load: str, fleet: tuple[int, int], way: str, seed: int) -> tuple[float, float]:
    """Share of documents found cached, and requests of the busiest endpoint over the mean."""
    reorder, routing = _WAYS[way]
    endpoints, capacity_docs = fleet
    done = rag.replay(
        LOADS[load](seed),
        endpoints=endpoints,
        capacity_docs=capacity_docs,
        reorder=reorder,
        routing=routing,
    )
    return done.hit, done.skew


def _hit(runs: _Runs, key: _Key) -> Estimate:
    return estimate([hit for hit, _ in runs[key]])


def _table(runs: _Runs, fleets: tuple[tuple[int, int], ...]) -> Table:
    columns = [(load, fleet) for load in _LOADS for fleet in fleets]
    rows: list[tuple[Value, ...]] = [
        (way, *(_hit(runs, (load, fleet, way)) for load, fleet in columns)) for way in _WAYS
    ]
    skews = [estimate([skew for _, skew in runs[load, fleet, _BEST]]) for load, fleet in columns]
    rows.append(("busiest/mean of the last", *skews))
    return Table(
        title="Documents found cached, by endpoints x documents held",
        columns=("", *(f"{load}, {n} x {held}" for load, (n, held) in columns)),
        rows=rows,
        digits=3,
    )


def _evidence(runs: _Runs, fleets: tuple[tuple[int, int], ...]) -> Evidence:
    places = {f"{load}, {n} x {held}": (load, (n, held)) for load in _LOADS for n, held in fleets}
    return {
        "round-robin-loses": {
            name: Seen(
                *([hit for hit, _ in runs[*place, way]] for way in (_UNROUTED, _BEST)),
            )
            for name, place in places.items()
        },
        "balanced": {
            name: Seen([skew for _, skew in runs[*place, _BEST]]) for name, place in places.items()
        },
    }


EXPERIMENTS = declared(__name__, {"context-endpoints": run})
