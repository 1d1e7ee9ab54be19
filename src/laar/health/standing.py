"""The health of candidates for a decision: which get traffic, at which price, and trials due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from laar.health.breaker import State
from laar.health.records import Records

__all__ = ["Standing", "standing_of"]


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
        all_failing: all are out, so all are tried.
        until: when this has to be computed again.
    """

    slots: Sequence[int]
    answers: Sequence[float] | None = None
    pace: Sequence[float] | None = None
    typical_s: Sequence[float] | None = None
    trials: Sequence[tuple[float, int]] = ()
    left_out: dict[int, str] = field(default_factory=dict)
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
    settings = records.settings
    answers = {s: records.endpoints[s].breaker.answers(settings, now) for s in troubled}
    out = [s for s in troubled if records.endpoints[s].breaker.is_out]
    if len(out) == len(slots):  # better a suspect than none
        out = [s for s in out if records.endpoints[s].breaker.state is not State.SUSPECT]
    trials = sorted((records.endpoints[s].breaker.trial_at, s) for s in out)
    all_failing = len(out) == len(slots)
    if all_failing:
        out, trials = [], []
    hopeless = [s for s in out if records.endpoints[s].breaker.is_hopeless]
    most = max(len(hopeless), int(settings.max_out_share * len(slots)), 1)
    if len(out) > most:
        rest = sorted(set(out).difference(hopeless), key=lambda s: answers[s])
        out = hopeless + rest[: most - len(hopeless)]
    left_out = {s: _why(records, s, now) for s in out}
    kept = [s for s in slots if s not in left_out]
    full = [s for s in kept if s in answers and records.endpoints[s].breaker.full_until > now]
    until = [now + 1.0]
    until += [at for at, _ in trials if at > now]
    if full and len(full) < len(kept):
        until += [records.endpoints[s].breaker.full_until for s in full]
        for slot in full:
            wait_s = records.endpoints[slot].breaker.full_until - now
            left_out[slot] = f"full: it refused a request, and is asked again in {wait_s:.1f} s"
        kept = [s for s in kept if s not in left_out]
    paces = [records.endpoints[s].pace for s in kept]
    slow = any(pace > 1.0 for pace in paces)
    return Standing(
        slots=kept,
        answers=[answers.get(s, 1.0) for s in kept],
        pace=paces if slow else None,
        typical_s=[_typical_s(records, s) for s in kept] if slow else None,
        trials=[(at, s) for at, s in trials if s in left_out],
        left_out=left_out,
        all_failing=all_failing,
        until=min(until),
    )


def _typical_s(records: Records, slot: int) -> float:
    model = records.endpoints[slot].model
    groups = [g for stream in (False, True) if (g := records.groups.get((model, stream)))]
    return max((group.typical_s for group in groups), default=0.0)


def _why(records: Records, slot: int, now: float) -> str:
    breaker = records.endpoints[slot].breaker
    if breaker.state is State.TRIAL:
        return f"failing ({breaker.kind}): a request is on trial there"
    if breaker.state is State.SUSPECT:
        return f"suspect ({breaker.kind}): the picker asks it a question first"
    wait_s = max(0.0, breaker.trial_at - now)
    return f"failing ({breaker.kind}): the next trial is due in {wait_s:.1f} s"
