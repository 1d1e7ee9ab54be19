"""The view of one request's candidates, for scorers.

It combines the assessor with the prefix index, which also estimates prompt lengths, each behind a
guard: if one fails, the view is built without it, with a reason code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from laar.accuracy.assessment import Assessment, PlainAssessor
from laar.core.candidates import Group, Variants
from laar.core.interfaces import View
from laar.core.plugin import NO_PARTS, Parts, prescore
from laar.fleet.endpoints import Floats, Slots
from laar.fleet.roundtrip import FIRST_FLIGHT_BYTES
from laar.request import Request

if TYPE_CHECKING:
    from laar.core.chooser import Chooser
    from laar.core.decision import DirectorSettings
    from laar.prefix.match import PrefixMatch

_MAX_TIMES_TRIED = 10
"""Maximum value of `times_tried`, which keeps costs finite."""

_PLAIN_ASSESSOR = PlainAssessor()


def view_of(
    chooser: Chooser,
    request: Request,
    tried: Sequence[str],
    group: Group,
    special: Parts,
    now: float,
) -> tuple[Group, View, Floats, str]:
    """Return the group, its view for the scorers, the prompt's tokens by model, and a reason code.

    The code is empty unless a part failed. Then the group is the one without variants.
    """
    table, slots, model_id, variants = chooser.table, group.slots, group.model_id, group.variants
    own_id = model_id if variants is None else table.model_id[slots]
    known, judged, by_model, match, reason = _estimated(chooser, request, tried, group, now)
    view = View(
        request=request,
        now=now,
        rng=chooser.rng,
        table=table,
        slots=slots,
        judged=table.judged,
        model_id=model_id,
        tokens=by_model[own_id],
        cached_tokens=np.zeros(len(slots)),
        queued_tokens=table.queued_tokens[slots],
        in_flight=table.in_flight[slots],
        rtt_s=group.rtt_s,
        wire_s=_wire_s(request, group) if request.body_bytes > FIRST_FLIGHT_BYTES else group.wire_s,
        probability=known.probability[judged],
        evidence=known.evidence[judged],
        seconds_per_token=known.seconds_per_token[own_id],
        base_s=known.base_s[model_id],
        times_tried=np.zeros(len(slots)),
        cell=known.cell,
        engines=chooser.engines,
        parts=NO_PARTS,
        published=None if known.published is None else known.published[judged],
        reported=None if known.reported is None else known.reported[judged],
        answers=group.standing.answers,
    )
    _judge(view, known, judged, tried, chooser.settings, variants)
    if match is not None:
        _match(view, match)
    if group.parts or special:
        view.parts = Parts([*group.parts.items(), *special.items()]) if special else group.parts
        if "prescore" in view.parts.points and not (reason and variants):
            prescore(view, view.parts, group, match)
    if variants is not None and (reason or view.faults):  # nothing is known of them then
        faults, plain = view.faults, variants.plain
        group, view, by_model, reason = view_of(chooser, request, tried, plain, special, now)
        view.faults = view.faults or faults
        return group, view, by_model, reason
    if len(slots) < 2 and "price" not in view.parts.points:
        view.demand = view.again = None  # nothing to compare
    return group, view, by_model, reason


def _estimated(
    chooser: Chooser, request: Request, tried: Sequence[str], group: Group, now: float
) -> tuple[Assessment, Slots, Floats, PrefixMatch | None, str]:
    """Return what is known of the models and of the caches, and a reason code.

    In between are each candidate's place among the models, and the prompt's tokens by model.
    """
    table, prefixes = chooser.table, chooser.prefixes
    models: Sequence[str] = table.judged
    judged, match, reason = group.model_id, None, ""
    if group.weights and request.model in chooser.settings.aliases:
        models, judged = _judged(chooser, request, group.slots, judged)
    try:
        known = chooser.assessor.assess(request, models, tried, now)
    except Exception:  # noqa: BLE001 - guarded inline: the guard is a call
        reason = chooser.degraded.degraded("assessor")
        known = _PLAIN_ASSESSOR.assess(request, models, tried, now)
    by_model = known.tokens[: len(table.models)]
    if request.tokens:
        by_model = np.full(len(by_model), float(request.tokens))
    if prefixes is not None:
        try:
            match = prefixes.look_up(request, group.weights, table.models, by_model, now)
            by_model = match.tokens
        except Exception:  # noqa: BLE001
            reason = chooser.degraded.degraded("prefixes")
    return known, judged, by_model, match, reason


def _wire_s(request: Request, group: Group) -> Floats:
    """Return `View.wire_s` of a body that TCP sends in several round trips."""
    rounds = (1 + request.body_bytes // FIRST_FLIGHT_BYTES).bit_length()
    return group.wire_s + (rounds - 1) * group.rtt_s


def _judge(
    view: View,
    known: Assessment,
    judged: Slots,
    tried: Sequence[str],
    settings: DirectorSettings,
    variants: Variants | None,
) -> None:
    """Set what a wrong answer costs, P(correct) given the models tried, and how sure it is."""
    request, evidence, reported = view.request, view.evidence, view.reported
    is_open = variants is not None or request.model in settings.aliases
    wrong_s = settings.wrong_answer_s if is_open else None
    if request.wrong_answer_s is not None or request.retries or request.tried:
        wrong_s = request.wrong_answer_s
    if wrong_s is not None:  # what one client would wait: all in flight there wait as well
        wrong_s /= 1.0 + float(np.add.reduce(view.in_flight)) / len(view.slots)
        view.wrong_s = wrong_s
    if wrong_s is not None and known.sure is not None:
        view.probability = known.sure[judged]
    p, some = view.probability, np.count_nonzero
    if tried:
        view.times_tried = _times_tried(view.judged, tried)[view.model_id]
        if known.repeats is not None:  # where nothing is known of a model, another is tried
            sampled = (evidence if reported is None else evidence + reported) > 0.0
            if variants is not None:
                sampled &= ~np.isin(view.model_id, variants.repeating)
            view.sampled = sampled
            view.probability = p * np.where(sampled, known.repeats[judged], 1.0) ** view.times_tried
    is_known = tried or some(evidence) or (reported is not None and some(reported))
    if not is_known and len(known.tokens) > 1:
        is_known = np.maximum.reduce(p) > np.minimum.reduce(p)
    view.knows_outcomes = bool(is_known)


def _match(view: View, match: PrefixMatch) -> None:
    """Set what is believed of the candidates' caches."""
    slots, tokens, shares = view.slots, view.tokens, match.shares
    if match.fetched is not None:
        shares = shares - match.fetched
        view.fetched_tokens = match.fetched[slots] * tokens
    view.cached_tokens = shares[slots] * tokens
    if match.left is not None:
        view.left_tokens = match.left[slots] * tokens
    view.chain, view.demand = match.chain, match.demand
    view.again = None if match.again is None else match.again[slots]


def _judged(
    chooser: Chooser, request: Request, slots: Slots, model_id: Slots
) -> tuple[Sequence[str], Slots]:
    """Return the models to judge, and the index of each candidate's model among them.

    LoRA adapters behind a virtual name are separate models, appended to the table's. A name for a
    single adapter means one model, so accuracy does not matter.
    """
    places = {model: at for at, model in enumerate(chooser.table.models)}
    table, name = chooser.table, request.model
    adapters = [table.adapter(table.by_slot[slot], name) for slot in slots.tolist()]
    own = [
        places.setdefault(adapter, len(places)) if adapter else at
        for adapter, at in zip(adapters, model_id.tolist(), strict=True)
    ]
    return list(places), np.array(own, np.intp)


def _times_tried(models: Sequence[str], tried: Sequence[str]) -> Floats:
    counts = Counter(tried)
    return np.array([min(counts[model], _MAX_TIMES_TRIED) for model in models], np.float64)
