"""Candidates' health for a decision: which get traffic, at what price, and which trials are due.

Each rule is an array over the candidates. Only those that may stand out are looked at one by one:
the others have closed breakers, and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laar.health.breaker import State
from laar.health.endpoint import Member
from laar.health.records import Records

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Slots = NDArray[np.intp]

_LOOK_S = 1.0
"""Seconds for which a standing with outliers is valid."""

MAX_OUT_SHARE = 0.7
"""Maximum share of a request's candidates that may be excluded at a time; the best of the others
stay, at a higher price. A fleet that seems to lose more than two thirds is more likely overloaded
or misjudged than broken. Endpoints that have only failed are excluded beyond this share. If all
would be excluded, all are tried."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """The health of some candidates.

    Args:
        kept: which of the candidates get traffic; None means all of them.
        answers: P(answers) of the kept candidates; None if all are healthy.
        new: which of the kept candidates are less likely to answer only because they are new; None
            if all are healthy.
        trials: excluded slots, with the time of their next trial, in order.
        left_out: why the others get no traffic, by slot.
        last: those that may yet answer, and so remain the last fallbacks: doubted or full, then
            under trial.
        down: excluded slots that have failed again since they were excluded.
        all_failing: all would have been excluded, so all are tried.
        until: when this must be recomputed.
    """

    kept: Flags | None = None
    answers: Floats | None = None
    new: Flags | None = None
    trials: Sequence[tuple[float, int]] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    last: Sequence[int] = ()
    down: Sequence[int] = ()
    all_failing: bool = False
    until: float = float("inf")


def standing_of(records: Records, slots: Slots, now: float, *, optional: bool = False) -> Standing:
    """Return the standing of some candidates.

    All may be excluded if they are `optional` (prefillers); each is then kept as soon
    as its trial is due.
    """
    if not records.outliers or not records.rules.settings.enabled:
        return Standing()
    found = np.isin(slots, [*records.outliers]).nonzero()[0].tolist()
    odd = {at: records.endpoints[slots.item(at)] for at in found}
    odd = {at: endpoint for at, endpoint in odd.items() if records.is_outlier(endpoint, now)}
    if not odd:
        return Standing()

    def flags(rule: Callable[[Member], bool]) -> Flags:
        flagged = np.zeros(len(slots), bool)
        flagged[[at for at, endpoint in odd.items() if rule(endpoint)]] = True
        return flagged

    answers = np.ones(len(slots))
    answers[[*odd]] = [endpoint.breaker.answers(now) for endpoint in odd.values()]
    out, all_failing = (
        (flags(lambda e: e.breaker.is_out and not e.breaker.request_due(now)), False)
        if optional
        else _out(flags, answers)
    )
    full = flags(lambda e: e.is_full(now)) & ~out
    doubted = flags(lambda e: e.breaker.doubted_until > now) & ~(out | full)
    left, waiting, unsure = (_those(odd, of) for of in (out, full, doubted))
    changes = [now + _LOOK_S, *(e.breaker.full_until for e in waiting)]
    changes += [e.breaker.doubted_until for e in unsure]
    changes += [e.breaker.trial_at for e in left]
    if (out | full | doubted).all() and not optional:
        (doubted if doubted.any() else full)[:] = False
        waiting, unsure = _those(odd, full), _those(odd, doubted)
    kept = ~(out | full | doubted)
    return Standing(
        kept=kept,
        answers=answers[kept],
        new=flags(lambda e: e.breaker.is_new)[kept],
        trials=sorted((e.breaker.trial_at, e.slot) for e in left),
        left_out={e.slot: _why_out(e, now) for e in left}
        | {e.slot: _why_full(e.breaker.full_until - now) for e in waiting}
        | {e.slot: "doubted: it failed, perhaps through the client's fault" for e in unsure},
        last=[
            *(e.slot for e in (*unsure, *left, *waiting) if not e.breaker.is_open),
            *(e.slot for e in left if e.breaker.is_open and e.breaker.may_answer),
        ],
        down=[e.slot for e in left if e.breaker.failed_again and e.breaker.is_open],
        all_failing=all_failing,
        until=min(at for at in changes if at > now),
    )


def _those(odd: Mapping[int, Member], flagged: Flags) -> list[Member]:
    return [odd[at] for at in flagged.nonzero()[0].tolist()]


def _out(flags: Callable[[Callable[[Member], bool]], Flags], answers: Floats) -> tuple[Flags, bool]:
    """Return which endpoints to exclude, and whether all fail, in which case none is excluded.

    Exclude hopeless endpoints first, then the least likely to answer, up to the maximum share.
    """
    out = flags(lambda e: e.breaker.is_out)
    if out.all():  # better a suspect than none
        out = flags(lambda e: e.breaker.state is not State.SUSPECT)
    if out.all():
        return ~out, True
    hopeless = flags(lambda e: e.breaker.is_hopeless) & out
    most = max(int(hopeless.sum()), int(MAX_OUT_SHARE * len(out)), 1)
    worst_first = np.lexsort((answers, ~hopeless, ~out))
    out[worst_first[most:]] = False
    return out, False


def _why_out(endpoint: Member, now: float) -> str:
    breaker, fault = endpoint.breaker, endpoint.fault
    if breaker.state is State.HALF_OPEN:
        return f"failing ({fault}): a trial request is in flight there"
    if breaker.state is State.SUSPECT:
        return f"suspect ({fault}): the picker probes it first"
    wait_s = max(0.0, breaker.trial_at - now)
    return f"failing ({fault}): the next trial is due in {wait_s:.1f} s"


def _why_full(wait_s: float) -> str:
    if wait_s <= 0.0:
        return "full: it has as many requests in flight as it can take, judging by its refusals"
    return f"full: it refused a request; the next is sent in {wait_s:.1f} s"
