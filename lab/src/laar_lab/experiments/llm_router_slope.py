"""llm-router's main result: how the median latency grows from 4 to 24 sessions, by policy.

The published latency is called TTFT but is measured for whole answers (see `router_sessions`), so
the claim is checked on whole answers. The TTFT that a streaming client would see is shown too. By
that measure round-robin is flatter than prefix-aware and no slower, because these engines prefill
first, so recomputed tokens delay the decoding of other answers. At 4 sessions least-loaded has the
best median, as published.

Hit rates agree with the published ones to within about half a point, and prefix-aware's slope to
within a quarter. The other slopes are up to two and a half times as steep here, because the
modeled engines suffer more from load. First turns, one request in eight, determine p95:
prefix-aware puts up to four of them on one worker before its valve opens, least-loaded one on
each. Over 40 seeds this makes prefix-aware's p95 3.9 % (+/- 1.6) longer for 7B and 2.4 % for 14B.
That is within the limit of 5 %, but on the first 10 seeds it is 5.1 % for 7B. All other parts of
the claim hold with 10 seeds, and all parts with 40.
"""

from __future__ import annotations

from itertools import product

from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.router_sessions import PROFILES, SESSIONS, run_sessions
from laar_lab.report import Report
from laar_lab.sweep import grid

POLICIES = ("round-robin", "random", "least-loaded", "llm-router", "laar")
_OTHERS = POLICIES[:3]
_OURS = "llm-router"
FLATTER = 1.4
_LATENCY = "e2e_p50_s"
_Runs = dict[tuple[str, str, int], list[dict[str, float]]]


def run(scope: Scope) -> Report:
    """Run all policies at all session counts on both models."""
    counts = (SESSIONS[0], SESSIONS[-1]) if scope.quick else SESSIONS
    sizes = ("14B",) if scope.quick else tuple(PROFILES)
    cases = {
        (size, policy, n): (policy, size, n) for size, policy, n in product(sizes, POLICIES, counts)
    }
    runs = grid(run_sessions, cases, scope.seeds, label="llm-router-slope")
    return Report(
        evidence=_evidence(runs, sizes, counts),
    )


def _slopes(runs: _Runs, size: str, policy: str, counts: tuple[int, ...]) -> list[float]:
    """Return how much the median latency rises from fewest to most sessions, in ms, by seed."""
    first, last = runs[size, policy, counts[0]], runs[size, policy, counts[-1]]
    return [1e3 * (b[_LATENCY] - a[_LATENCY]) for a, b in zip(first, last, strict=True)]


def _evidence(runs: _Runs, sizes: tuple[str, ...], counts: tuple[int, ...]) -> Evidence:
    most = counts[-1]

    def slopes(policy: str, size: str, times: float = 1.0) -> list[float]:
        return [times * slope for slope in _slopes(runs, size, policy, counts)]

    def busiest(size: str, other: str, name: str, ours: str = _OURS) -> Seen:
        return paired(runs[size, ours, most], runs[size, other, most], name)

    def hits(size: str, policy: str, n: int) -> list[float]:
        return [100.0 * run["hit_rate"] for run in runs[size, policy, n]]

    places = {f"{size}, {n}": (size, n) for size, n in product(sizes, counts)}
    return {
        "flatter": {
            f"{size}, {other}": Seen(slopes(_OURS, size, FLATTER), slopes(other, size))
            for size, other in product(sizes, _OTHERS)
        },
        "cached": {part: Seen(hits(size, _OURS, n)) for part, (size, n) in places.items()},
        "cached-ahead": {
            part: Seen(hits(size, _OURS, n), hits(size, "round-robin", n))
            for part, (size, n) in places.items()
        },
        "median": {other: busiest("14B", other, _LATENCY) for other in _OTHERS},
        "p99": {other: busiest("14B", other, "e2e_p99_s") for other in _OTHERS},
        "laar": {size: busiest(size, "least-loaded", _LATENCY, "laar") for size in sizes},
    }


EXPERIMENTS = declared(__name__, {"llm-router-slope": run})
