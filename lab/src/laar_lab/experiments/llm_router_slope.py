"""llm-router's headline: how the median latency grows from 4 to 24 sessions, by policy.

The published latency is called TTFT and is that of whole answers (see `router_sessions`), so whole
answers are used to check the claim. The time to a first token, which a client that streams
would see, stands beside it: there round-robin is flatter than prefix-aware and no slower, because
these engines prefill first and recomputed tokens delay the decoding of others. At 4 sessions
least-loaded wins the median, here as there.

Hit rates agree with the published ones to about half a point, prefix-aware's slope to a quarter;
the other slopes are up to two and a half times as steep here: the model's engines suffer more from
load. p95 is that of first turns, one request in eight: prefix-aware puts up to four of them on one
worker before its valve opens, least-loaded one on each. Over 40 seeds that costs it 3.9 % (1.6
either way) for 7B and 2.4 % for 14B: within the limit of 5 %, but the first 10 seeds are at 5.1 %
for 7B. Every other part of the claim holds at 10 seeds, all of it at 40.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.router_sessions import PROFILES, SESSIONS, run_sessions
from laar_lab.report import Chart, Report, Table, Value
from laar_lab.statistics import Estimate, estimate
from laar_lab.sweep import grid

POLICIES = ("round-robin", "random", "least-loaded", "llm-router", "laar")
_OTHERS = POLICIES[:3]
_OURS = "llm-router"
FLATTER = 1.4
_LATENCY = "e2e_p50_s"
PUBLISHED = {
    "7B": {
        "round-robin": (31, 80.3, 91.31),
        "random": (49, 80.94, 90.92),
        "least-loaded": (36, 85.15, 94.6),
        "llm-router": (16, 94.19, 94.97),
    },
    "14B": {
        "round-robin": (36, 80.04, 91.1),
        "random": (98, 81.43, 90.69),
        "least-loaded": (49, 85.41, 94.22),
        "llm-router": (25, 94.19, 94.88),
    },
}
"""Slope in ms, and the percentage of prompt tokens cached at 4 and at 24 sessions."""
_Runs = dict[tuple[str, str, int], list[dict[str, float]]]


def run(scope: Scope) -> Report:
    """Runs all policies at all session counts, both models."""
    counts = (SESSIONS[0], SESSIONS[-1]) if scope.quick else SESSIONS
    sizes = ("14B",) if scope.quick else tuple(PROFILES)
    cases = {
        (size, policy, n): (policy, size, n) for size, policy, n in product(sizes, POLICIES, counts)
    }
    runs = grid(run_sessions, cases, scope.seeds, label="llm-router-slope")
    return Report(
        tables=[table for size in sizes for table in _tables(runs, size, counts)],
        evidence=_evidence(runs, sizes, counts),
        charts=[
            Chart(
                title=f"Median latency, {size} on 4 A100",
                x_label="sessions",
                y_label="ms",
                x=list(counts),
                series={
                    p: [_of(runs[size, p, n], _LATENCY, 1e3) for n in counts] for p in POLICIES
                },
            )
            for size in sizes
        ],
    )


def _of(runs: list[dict[str, float]], name: str, scale: float = 1.0) -> Estimate:
    return estimate([run[name] * scale for run in runs])


def _slopes(runs: _Runs, size: str, policy: str, counts: tuple[int, ...]) -> list[float]:
    """Milliseconds that the median latency gains from fewest to most sessions, by seed."""
    first, last = runs[size, policy, counts[0]], runs[size, policy, counts[-1]]
    return [1e3 * (b[_LATENCY] - a[_LATENCY]) for a, b in zip(first, last, strict=True)]


def _tables(runs: _Runs, size: str, counts: tuple[int, ...]) -> list[Table]:
    def medians(metric: str) -> list[tuple[Value, ...]]:
        return [
            (policy, *(_of(runs[size, policy, n], metric, 1e3) for n in counts))
            for policy in POLICIES
        ]

    def cached(policy: str, n: int) -> Estimate:
        return _of(runs[size, policy, n], "hit_rate", 100)

    most = counts[-1]
    ends: list[tuple[Value, ...]] = [
        (
            policy,
            _of(runs[size, policy, most], "e2e_p95_s", 1e3),
            _of(runs[size, policy, most], "e2e_p99_s", 1e3),
            _of(runs[size, policy, most], "requests_per_s"),
            _of(runs[size, policy, most], "routing_hits", 100),
        )
        for policy in POLICIES
    ]
    beside: list[tuple[Value, ...]] = [
        (
            policy,
            *(estimate(_slopes(runs, size, policy, counts)), slope),
            *(cached(policy, counts[0]), first, cached(policy, most), last),
        )
        for policy, (slope, first, last) in PUBLISHED[size].items()
    ]
    headings = tuple(f"{n} sessions" for n in counts)
    ours_and_theirs = ("published", f"cached at {counts[0]}", "published", f"at {most}")
    return [
        Table(
            title=f"{size}: median latency of whole answers, ms",
            columns=("policy", *headings),
            rows=medians(_LATENCY),
            digits=1,
        ),
        Table(
            title=f"{size}: median time to the first token, ms",
            columns=("policy", *headings),
            rows=medians("ttft_p50_s"),
            digits=1,
        ),
        Table(
            title=f"{size}: prompt tokens found in the engines' caches, %",
            columns=("policy", *headings),
            rows=[(policy, *(cached(policy, n) for n in counts)) for policy in POLICIES],
            digits=1,
        ),
        Table(
            title=f"{size}: {most} sessions",
            columns=("policy", "p95 ms", "p99 ms", "req/s", "routed by a prefix, %"),
            rows=ends,
            digits=1,
        ),
        Table(
            title=f"{size}: slope in ms and cached tokens in %, beside what was published",
            columns=("policy", "slope", *ours_and_theirs, "published"),
            rows=beside,
            digits=1,
        ),
    ]


def _evidence(runs: _Runs, sizes: tuple[str, ...], counts: tuple[int, ...]) -> Evidence:
    most = counts[-1]

    def slopes(policy: str, size: str, times: float = 1.0) -> list[float]:
        return [times * slope for slope in _slopes(runs, size, policy, counts)]

    def at_most(size: str, other: str, name: str, ours: str = _OURS) -> Seen:
        return paired(runs[size, ours, most], runs[size, other, most], name)

    pairs = [(size, other) for size in sizes for other in _OTHERS]
    hits = {
        (size, policy, n): [100.0 * run["hit_rate"] for run in runs[size, policy, n]]
        for size in sizes
        for policy in (_OURS, "round-robin")
        for n in counts
    }
    busiest = {other: ("14B", other) for other in _OTHERS}
    return {
        "flatter": {f"{s}, {o}": Seen(slopes(_OURS, s, FLATTER), slopes(o, s)) for s, o in pairs},
        "cached": {f"{s}, {n}": Seen(hits[s, _OURS, n]) for s in sizes for n in counts},
        "cached-ahead": {
            f"{s}, {n}": Seen(hits[s, _OURS, n], hits[s, "round-robin", n])
            for s in sizes
            for n in counts
        },
        "median": {o: at_most(*place, _LATENCY) for o, place in busiest.items()},
        "p99": {o: at_most(*place, "e2e_p99_s") for o, place in busiest.items()},
        "requests": {o: at_most(*place, "requests_per_s") for o, place in busiest.items()},
        "p95": {size: at_most(size, "least-loaded", "e2e_p95_s") for size in sizes},
        "laar": {size: at_most(size, "least-loaded", _LATENCY, "laar") for size in sizes},
    }


EXPERIMENTS = declared(__name__, {"llm-router-slope": run})
