"""Compute the cost of troubles, and check that promises are kept during them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.chaos.asking import BROKEN, GOOD, End, Ended
from bench.chaos.trouble import Struck
from bench.figures import rank

__all__ = ["TRIALS_PER_S", "Cost", "Judgment", "judge"]

TRIALS_PER_S = 2.0
"""Requests a second that an endpoint may get as trials while it fails all of them."""
FEW_TRIALS = 5.0
"""Requests to a failing endpoint that are always allowed."""

_ANSWERED = GOOD | {End.LEFT}


@dataclass(slots=True)
class Cost:
    """The cost of one kind of trouble.

    `during` counts requests that overlap it, `lost` those attributed to it that got no correct
    answer. `p95_ratio` is the p95 of correct answers during it, relative to the quiet fleet's.
    """

    name: str
    times: int = 0
    during: int = 0
    lost: int = 0
    p95_ratio: float = float("nan")
    fed: int = 0
    fed_allowed: float = 0.0


@dataclass(slots=True)
class Judgment:
    """The judgment of a run; `reasons` counts reported errors by status and reason."""

    costs: list[Cost] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    unexplained: list[Ended] = field(default_factory=list)
    overfed: list[Struck] = field(default_factory=list)
    quiet_p95_s: float = float("nan")


def judge(
    ended: Sequence[Ended],
    struck: Sequence[Struck],
    *,
    quiet_from_s: float,
    quiet_until_s: float,
    gateway: bool,
) -> Judgment:
    """Attribute every loss to a trouble, or report it as unexplained.

    An engine's error, a truncated answer or a client timeout is explained by a trouble of the
    endpoint that served it or, if the endpoint is unknown, by any active trouble that causes such
    outcomes. An error body with a reason needs no explanation, but still counts as a loss.
    """
    result = Judgment()
    quiet = [
        e.took_s
        for e in ended
        if e.began_s >= quiet_from_s and e.ended_s < quiet_until_s and e.end in _ANSWERED
    ]
    result.quiet_p95_s = rank(quiet, 0.95)
    costs: dict[str, Cost] = {}
    times: dict[str, list[float]] = {}
    for one in struck:
        cost = costs.setdefault(one.trouble.name, Cost(one.trouble.name))
        cost.times += 1
        if one.fed is not None and not _unsettled(one, struck):
            allowed = max(FEW_TRIALS, TRIALS_PER_S * one.fed_s)
            cost.fed += one.fed
            cost.fed_allowed += allowed
            if one.fed > allowed:
                result.overfed.append(one)
    for e in ended:
        result.ends[str(e.end)] += 1
        if e.end is End.REFUSED:
            result.reasons[e.detail.partition(":")[0]] += 1
        felt = [one for one in struck if one.overlaps(e.began_s, e.ended_s)]
        for name in {one.trouble.name for one in felt}:
            costs[name].during += 1
            if e.end in GOOD:
                times.setdefault(name, []).append(e.took_s)
        if e.end in _ANSWERED:
            continue
        cause = _cause(e, felt, gateway=gateway)
        if cause is not None:
            costs[cause.trouble.name].lost += 1
        if cause is None or not _explains(cause, e, gateway=gateway):
            result.unexplained.append(e)
    for name, cost in costs.items():
        cost.p95_ratio = rank(times.get(name, []), 0.95) / result.quiet_p95_s
    result.costs = sorted(costs.values(), key=lambda cost: cost.name)
    return result


def _unsettled(one: Struck, struck: Sequence[Struck]) -> bool:
    """Return whether a picker lost its state or was bypassed while the endpoint failed."""
    return any(s.trouble.unsettles and s.overlaps(one.began_s, one.ended_s) for s in struck)


def _cause(ended: Ended, felt: Sequence[Struck], *, gateway: bool) -> Struck | None:
    """Return the trouble to attribute a loss to: the latest that explains it, or the latest."""
    endpoint = ended.endpoint or ended.picked
    own = [one for one in felt if endpoint and endpoint in one.addresses]
    candidates = own or felt
    if ended.end is End.REFUSED:
        known = [one for one in felt if one.trouble.reason and one.trouble.reason in ended.detail]
        candidates = known or candidates
    explaining = [one for one in candidates if _explains(one, ended, gateway=gateway)]
    if not explaining:
        explaining = [one for one in felt if _explains(one, ended, gateway=gateway)]
    return max(explaining or candidates, key=lambda one: one.began_s, default=None)


def _explains(cause: Struck, ended: Ended, *, gateway: bool) -> bool:
    if ended.end is End.REFUSED:
        return True
    if ended.end in (End.ENGINE, End.EVENT):
        return ended.endpoint in cause.addresses
    if ended.end in BROKEN:
        known = not cause.addresses or not ended.endpoint or ended.endpoint in cause.addresses
        excuses = cause.trouble.excuses
        if gateway:
            excuses |= cause.trouble.gateway_excuses
        return known and ended.end in excuses
    return False
