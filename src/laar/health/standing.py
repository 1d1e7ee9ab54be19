"""The health of candidates for a decision: which get traffic, at which price, and trials due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laar.health.breaker import Breaker, State
from laar.health.endpoint import Endpoint
from laar.health.records import Records

_LOOK_S = 1.0
"""Seconds for which a standing with troubled endpoints is good at most."""

MAX_OUT_SHARE = 0.7
"""Share of a request's candidates that may be out at once although they answer now and then; the
least bad stay, at their price. A fleet that loses more than two thirds is more likely overloaded or
misjudged than broken. Endpoints that only failed are out beyond this share. If all are out, all are
tried."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """The health of some candidates.

    Args:
        slots: the candidates that get traffic.
        answers: P(answers) of each of them; None where all are sound.
        pace: how many times slower than its siblings each is; None where none is.
        typical_s: a whole answer of each one's model, seconds; None with `pace`.
        trials: slots that are out, by the time their next trial is due.
        left_out: why the others get none.
        down: those of them that have failed again since they were taken out.
        all_failing: all are out, so all are tried.
        until: when this has to be computed again.
    """

    slots: Sequence[int]
    answers: Sequence[float] | None = None
    pace: Sequence[float] | None = None
    typical_s: Sequence[float] | None = None
    trials: Sequence[tuple[float, int]] = ()
    left_out: dict[int, str] = field(default_factory=dict)
    down: Sequence[int] = ()
    all_failing: bool = False
    until: float = float("inf")


def standing_of(
    records: Records, slots: Sequence[int], models: Sequence[str], now: float
) -> Standing:
    """The standing of some candidates, each of which serves the model beside it."""
    for slot, model in zip(slots, models, strict=True):
        known = records.endpoints.get(slot)
        if known is None or known.model != model:
            records.know(slot, model, now)
    settings = records.settings
    if not records.troubled or not settings.enabled:
        return Standing(slots=slots)
    troubled = [slot for slot in slots if slot in records.troubled and _is_so(records, slot, now)]
    if not troubled:
        return Standing(slots=slots)
    return _with_troubled(records, slots, troubled, now)


def _is_so(records: Records, slot: int, now: float) -> bool:
    endpoint = records.endpoints[slot]
    if endpoint.speed.weight(now) < 1.0:
        endpoint.pace = 1.0  # nothing was heard for so long that it deserves another look
    if endpoint.pace > 1.0 or endpoint.breaker.troubled(records.settings, now):
        return True
    records.troubled.discard(slot)
    return False


def _with_troubled(
    records: Records, slots: Sequence[int], troubled: Sequence[int], now: float
) -> Standing:
    breakers = {slot: records.endpoints[slot].breaker for slot in troubled}
    answers = {slot: one.answers(now) for slot, one in breakers.items()}
    out = [slot for slot in troubled if breakers[slot].is_out]
    if len(out) == len(slots):  # better a suspect than none
        out = [slot for slot in out if breakers[slot].state is not State.SUSPECT]
    all_failing = len(out) == len(slots)
    out = [] if all_failing else _as_many_as_may(out, breakers, answers, len(slots))
    left_out = {slot: _why_out(records.endpoints[slot], now) for slot in out}
    trials = sorted((breakers[slot].trial_at, slot) for slot in out)
    kept = [slot for slot in slots if slot not in left_out]
    full = {
        slot: one.full_until
        for slot, one in breakers.items()
        if slot not in left_out and records.endpoints[slot].is_full(now)
    }
    if len(full) < len(kept):
        left_out |= {slot: _why_full(until - now) for slot, until in full.items()}
        kept = [slot for slot in kept if slot not in full]
    paces = [records.endpoints[slot].pace for slot in kept]
    is_slow = any(pace > 1.0 for pace in paces)
    changes = (now + _LOOK_S, *(at for at, _ in trials if at > now))
    changes += tuple(until for until in full.values() if until > now)
    return Standing(
        slots=kept,
        answers=[answers.get(slot, 1.0) for slot in kept],
        pace=paces if is_slow else None,
        typical_s=[_typical_s(records, slot) for slot in kept] if is_slow else None,
        trials=trials,
        left_out=left_out,
        down=[slot for slot in out if breakers[slot].stays_out],
        all_failing=all_failing,
        until=min(changes),
    )


def _as_many_as_may(
    out: list[int],
    breakers: Mapping[int, Breaker],
    answers: Mapping[int, float],
    count: int,
) -> list[int]:
    """Those of the endpoints that are out which get no traffic: a share of `count` at most.

    Hopeless ones come first, then those that are the least likely to answer.
    """
    hopeless = [slot for slot in out if breakers[slot].is_hopeless]
    most = max(len(hopeless), int(MAX_OUT_SHARE * count), 1)
    if len(out) <= most:
        return out
    rest = sorted(set(out).difference(hopeless), key=lambda slot: answers[slot])
    return hopeless + rest[: most - len(hopeless)]


def _typical_s(records: Records, slot: int) -> float:
    model = records.endpoints[slot].model
    groups = [g for stream in (False, True) if (g := records.groups.get((model, stream)))]
    return max((group.typical_s for group in groups), default=0.0)


def _why_out(endpoint: Endpoint, now: float) -> str:
    breaker, fault = endpoint.breaker, endpoint.fault
    if breaker.state is State.TRIAL:
        return f"failing ({fault}): a request is on trial there"
    if breaker.state is State.SUSPECT:
        return f"suspect ({fault}): the picker asks it a question first"
    wait_s = max(0.0, breaker.trial_at - now)
    return f"failing ({fault}): the next trial is due in {wait_s:.1f} s"


def _why_full(wait_s: float) -> str:
    if wait_s <= 0.0:
        return "full: it has as many requests in flight as it takes, by those that it refused"
    return f"full: it refused a request, and is asked again in {wait_s:.1f} s"
