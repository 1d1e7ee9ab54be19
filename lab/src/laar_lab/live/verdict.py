"""Judge a run of `laar overload`: shares within the objective, and checks that must hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from laar_lab.experiments.medha_picker import EXPERIMENTS
from laar_lab.live.leftovers import Rest, kept_files
from laar_lab.live.openloop import HUNG, Answered
from laar_lab.report import Check, Report, Table
from laar_lab.workloads.overload import CLASSES, LOAD, sites

_BOUNDS = {claim.name: claim.bound for claim in EXPERIMENTS[0].claims}
_GAIN, _KEPT = _BOUNDS["slack"], _BOUNDS["goodput-kept"]
"""The bounds of `medha-picker`'s claims in virtual time."""
_MIN_SPEED = 0.9
"""Minimum speed; a slower fleet does not behave like the hardware that it simulates."""
_MAX_GROWTH_BYTES = 32 << 20
"""Five times the growth measured in a minute, which is due to allocators, prefixes and remembered
decisions, all of them bounded."""
DEADLINE_S = 240.0
"""Deadline in the fleet's seconds: four times the queue's longest hold, so that an answer that has
started can end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load served with one queue order.

    Args:
        seed: seed of the load.
        answers: outcome of each request of the load.
        served: requests that the endpoints report as completely answered.
        before: the fleet before the first client.
        after: the fleet after the last client.
    """

    seed: int
    answers: Sequence[Answered]
    served: int
    before: Rest
    after: Rest


def judge(
    runs: Mapping[str, Sequence[Run]],
    *,
    speed: float,
    seconds: float,
    time_scale: float,
    remarks: Sequence[str] = (),
) -> Report:
    """Return the tables and checks of a run.

    Args:
        runs: runs by queue order, one per seed.
        speed: speed of the fleet on this machine, as a share of its speed in virtual time.
        seconds: duration of the load in the fleet's seconds.
        time_scale: real seconds per second of the fleet.
        remarks: remarks to print with the tables.
    """
    shares = {route: [_Shares.of(run, time_scale) for run in runs[route]] for route in runs}
    late_ms = 1e3 * max(one.late_s for many in runs.values() for r in many for one in r.answers)
    return Report(
        tables=[
            Table(
                title=f"{seconds:g} s at {LOAD} times capacity, {len(sites())} endpoints, real "
                "Envoy: share within the objective",
                columns=(
                    *("queue", "seed", "requests", "within", *CLASSES),
                    *("429, 503", "longest TTFT, s"),
                ),
                rows=[
                    (
                        *(route, run.seed, len(run.answers), share.within),
                        *(share.by_class[kind] for kind in CLASSES),
                        *(share.shed, share.longest_s),
                    )
                    for route in runs
                    for run, share in zip(runs[route], shares[route], strict=True)
                ],
                digits=3,
            )
        ],
        checks=[
            Check(
                claim="this machine runs the fleet at 90 % of its speed or more",
                held=speed >= _MIN_SPEED,
                seen=f"{speed:.1%}"
                + ("" if speed >= _MIN_SPEED else "; raise --time-scale, or use more cores"),
            ),
            *_whole(runs),
            *_shares(shares),
        ],
        remarks=[
            f"requests were sent at most {late_ms:.0f} ms late",
            *remarks,
        ],
    )


@dataclass(frozen=True, slots=True)
class _Shares:
    """Shares of a run's requests by outcome, and the longest TTFT."""

    within: float
    by_class: Mapping[str, float]
    shed: float
    longest_s: float

    @classmethod
    def of(cls, run: Run, time_scale: float) -> _Shares:
        ttft_s = {
            one.ask.number: one.ttft_s / time_scale
            for one in run.answers
            if one.ttft_s is not None and not one.fault
        }

        def share(answers: Sequence[Answered]) -> float:
            met = [ttft_s.get(a.ask.number, math.inf) <= a.ask.objective_s for a in answers]
            return sum(met) / max(1, len(met))

        return cls(
            within=share(run.answers),
            by_class={
                kind: share([one for one in run.answers if one.ask.kind == kind])
                for kind in CLASSES
            },
            shed=sum(one.status in (429, 503) for one in run.answers) / max(1, len(run.answers)),
            longest_s=max(ttft_s.values(), default=math.nan),
        )


def _whole(runs: Mapping[str, Sequence[Run]]) -> list[Check]:
    """Check that every request has exactly one answer and that nothing is left behind."""
    every = [run for many in runs.values() for run in many]
    answers = [one for run in every for one in run.answers]
    hung = sum(one.fault == HUNG for one in answers)
    faults = Counter(one.fault for one in answers if one.fault and one.fault != HUNG)
    statuses = Counter(one.status for one in answers)
    whole = {id(run): sum(a.status == 200 and not a.fault for a in run.answers) for run in every}
    doubled = [run for run in every if run.served != whole[id(run)]]
    left = Counter(name for run in every for name in run.after.left)
    grown = [run.after.rss_bytes - run.before.rss_bytes for run in every]
    kept = kept_files(len(sites()))
    files = [run.after.files - run.before.files for run in every]
    return [
        Check(
            claim="no request hangs",
            held=not hung,
            seen=f"{hung} of {len(answers)} without a complete answer after {DEADLINE_S:g} s",
        ),
        Check(
            claim="each gets a complete answer with 200, or a 429 or 503 with a valid retry-after",
            held=not faults,
            seen=", ".join(f"{n} x {status}" for status, n in statuses.most_common())
            + "".join(f"; {n} x {fault}" for fault, n in faults.most_common(3)),
        ),
        Check(
            claim="no endpoint serves a request twice, or one whose client has gone",
            held=not doubled,
            seen=f"{sum(run.served for run in every)} served, {sum(whole.values())} received",
        ),
        Check(
            claim="nothing is left behind in picker, Envoy and endpoints",
            held=not left and max(files) <= kept,
            seen=f"{', '.join(left) or 'all at 0'}; the picker's open files changed by "
            f"{max(files):+d} at most, and it keeps up to {kept} connections",
        ),
        Check(
            claim=f"the picker grows by at most {_MAX_GROWTH_BYTES >> 20} MiB",
            held=max(grown) <= _MAX_GROWTH_BYTES,
            seen=f"{max(grown) / (1 << 20):.1f} MiB at most",
        ),
    ]


def _shares(shares: Mapping[str, Sequence[_Shares]]) -> list[Check]:
    """Check that slack order serves more requests within the objective without harming a class."""

    def gains(other: str) -> list[float]:
        pairs = zip(shares["slack"], shares[other], strict=True)
        return [ours.within / max(theirs.within, 1e-9) for ours, theirs in pairs]

    def times(other: str) -> str:
        return ", ".join(f"{gain:.2f}" for gain in gains(other))

    checks = [
        Check(
            claim=f"the share within the objective is at least {100 * (_GAIN - 1.0):.0f} % higher "
            "than in order of arrival",
            held=min(gains("arrival")) >= _GAIN,
            seen=f"{times('arrival')} times that in arrival order, {times('arrival, kept apart')} "
            f"times with equal rules for long prompts, {times('no queue')} times without a queue",
        )
    ]
    for kind in CLASSES:
        ours, theirs = (fmean(s.by_class[kind] for s in shares[r]) for r in ("slack", "arrival"))
        checks.append(
            Check(
                claim=f"{kind}s keep at least {100 * _KEPT:.0f} % of the goodput that they have in "
                "arrival order",
                held=ours >= _KEPT * theirs,
                seen=f"{ours:.3f} against {theirs:.3f} within the objective",
            )
        )
    return checks
