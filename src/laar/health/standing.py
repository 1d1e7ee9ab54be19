"""Candidates' health for a decision: which get traffic, at what price, and which trials are due.

There is one pass over the candidates; each rule is an array over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laar.health.breaker import State
from laar.health.endpoint import Member
from laar.health.records import Records

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

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


def standing_of(
    records: Records,
    slots: Sequence[int],
    models: Sequence[str],
    now: float,
    *,
    optional: bool = False,
) -> Standing:
    """Return the standing of some candidates, given the model that each serves.

    All may be excluded if they are `optional` (prefillers); each is then kept as soon
    as its trial is due.
    """
    endpoints = [records.of(slot, model, now) for slot, model in zip(slots, models, strict=True)]
    if not records.outliers or not records.rules.settings.enabled:
        return Standing()
    outliers = [e.slot in records.outliers and records.is_outlier(e, now) for e in endpoints]
    if not any(outliers):
        return Standing()
    # Endpoints that are not outliers have closed breakers, and answer.
    chances = zip(endpoints, outliers, strict=True)
    answers = np.array([e.breaker.answers(now) if outlier else 1.0 for e, outlier in chances])
    if optional:
        breakers, all_failing = [endpoint.breaker for endpoint in endpoints], False
        out = np.array([b.is_out and not b.request_due(now) for b in breakers])
    else:
        out, all_failing = _out(endpoints, answers)
    full = np.array([endpoint.is_full(now) for endpoint in endpoints]) & ~out
    doubted = np.array([e.breaker.doubted_until > now for e in endpoints]) & ~(out | full)
    changes = [now + _LOOK_S, *(endpoints[at].breaker.full_until for at in np.flatnonzero(full))]
    changes += [endpoints[at].breaker.doubted_until for at in np.flatnonzero(doubted)]
    if (out | full | doubted).all() and not optional:
        (doubted if doubted.any() else full)[:] = False
    kept = ~(out | full | doubted)
    left = [endpoints[at] for at in np.flatnonzero(out)]
    waiting = [endpoints[at] for at in np.flatnonzero(full)]
    unsure = [endpoints[at] for at in np.flatnonzero(doubted)]
    changes += [e.breaker.trial_at for e in left]
    return Standing(
        kept=kept,
        answers=answers[kept],
        new=np.array([endpoint.breaker.is_new for endpoint in endpoints])[kept],
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


def _out(endpoints: Sequence[Member], answers: Floats) -> tuple[Flags, bool]:
    """Return which endpoints to exclude, and whether all fail, in which case none is excluded.

    Exclude hopeless endpoints first, then the least likely to answer, up to the maximum share.
    """
    breakers = [endpoint.breaker for endpoint in endpoints]
    out = np.array([breaker.is_out for breaker in breakers])
    if out.all():  # better a suspect than none
        out = np.array([breaker.state is not State.SUSPECT for breaker in breakers])
    if out.all():
        return ~out, True
    hopeless = np.array([breaker.is_hopeless for breaker in breakers]) & out
    most = max(int(hopeless.sum()), int(MAX_OUT_SHARE * len(breakers)), 1)
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
