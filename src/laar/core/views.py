"""The view of one request's candidates, for scorers.

It combines the assessor with the prefix index, which also estimates prompt lengths, each behind a
guard: if one fails, the view is built without it, with a reason code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from laar.accuracy.assessor import PlainAssessor
from laar.core.apart import Apart
from laar.core.candidates import Group
from laar.core.endpoints import Floats, Slots
from laar.core.interfaces import View
from laar.core.plugin import NO_PARTS, Parts, prescore
from laar.core.request import Request
from laar.core.roundtrip import FIRST_FLIGHT_BYTES

if TYPE_CHECKING:
    from laar.core.chooser import Chooser
    from laar.core.endpoints import EndpointTable
    from laar.prefix.beliefs import PrefixBeliefs
    from laar.prefix.blocks import Chain

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

    The code is empty unless a part failed. Then the group is the one without modes, if it had any.
    """
    table, settings, prefixes, reason = chooser.table, chooser.settings, chooser.prefixes, ""
    slots, model_id, standing = group.slots, group.model_id, group.standing
    models: Sequence[str] = table.judged
    judged, weights_of = model_id, group.weights
    own_id = model_id if group.plain is None else table.model_id[slots]  # without modes
    is_open = request.model in settings.aliases or group.plain is not None
    if weights_of and is_open:
        models, judged = _judged(chooser, request, slots, model_id)
    try:
        known = chooser.assessor.assess(request, models, tried, now)
    except Exception:  # noqa: BLE001 - guarded inline, as below
        reason = chooser.degraded.degraded("assessor")
        known = _PLAIN_ASSESSOR.assess(request, models, tried, now)
    by_model = known.tokens[: len(table.models)]
    if request.tokens:
        by_model = np.full(len(by_model), float(request.tokens))
    match = None
    if prefixes is not None:
        try:
            match = prefixes.look_up(request, weights_of, table.models, by_model, now)
        except Exception:  # noqa: BLE001
            reason = chooser.degraded.degraded("prefixes")
    chain = demand = again = fetched = None
    if match is None:
        shares = np.zeros(table.capacity)
    else:
        chain, by_model, shares = match.chain, match.tokens, match.shares
        demand, again, fetched = match.demand, match.again, match.fetched
        if fetched is not None:
            shares = shares - fetched
    prefillers = group.prefillers
    if prefillers is not None and "fit_prefill" in group.parts.points:
        at, tokens = prefillers.slots, by_model[table.model_id[prefillers.slots]]
        fits = chooser.plugins.fit(group.parts, "fit_prefill", request, at, tokens)
        prefillers = prefillers if fits is None else prefillers.only(fits)
    if len(slots) < 2 and prefillers is None:
        demand = again = None  # nothing to compare
    apart = None
    if prefillers is not None:
        places = prefillers.slots
        at, itself = table.model_id[places], table.in_flight[places] - table.visiting[places]
        apart = Apart(
            rule=settings.apart,
            least_tokens=settings.apart_tokens,
            transfer_s_per_token=1.0 / settings.transfer_tokens_per_s,
            of=prefillers,
            tokens=by_model[at],
            cached_tokens=shares[places] * by_model[at],
            seconds_per_token=known.seconds_per_token[at],
            decoding=np.where(table.takes[places], np.maximum(itself, 0.0), 0.0),
            again=None if again is None else again[places],
        )
    tokens = by_model[own_id]
    cached_tokens = shares[slots] * tokens
    fetched_tokens = None if fetched is None else fetched[slots] * tokens
    again, chains = None if again is None else again[slots], {}
    if group.plain is not None and match is not None and prefixes is not None:
        columns = tokens, cached_tokens, fetched_tokens, again
        try:
            chains = _own_prefixes(prefixes, table, request, group, by_model, columns, now)
        except Exception:  # noqa: BLE001
            reason = chooser.degraded.degraded("prefixes")
    wrong_s, asks_again = request.wrong_answer_s, request.retries or bool(request.tried)
    if wrong_s is None and is_open and not asks_again:
        wrong_s = settings.wrong_answer_s
    likely = known.probability if wrong_s is None or known.sure is None else known.sure
    p, evidence, some = likely[judged], known.evidence[judged], np.count_nonzero
    reported = None if known.reported is None else known.reported[judged]
    times_tried, sampled = np.zeros(len(slots)), None
    if tried:
        times_tried = _times_tried(table.judged, tried)[model_id]
        if known.repeats is not None:  # where nothing is known of a model, another is tried
            sampled = (evidence if reported is None else evidence + reported) > 0.0
            fixed = [number for number, mode in table.modes.items() if mode.reproducible]
            sampled &= ~np.isin(model_id, fixed)
            p = p * np.where(sampled, known.repeats[judged], 1.0) ** times_tried
    is_known = tried or some(evidence)
    if not is_known and len(models) > 1:
        is_known = np.maximum.reduce(p) > np.minimum.reduce(p)
    in_flight, queued_tokens = table.in_flight[slots], table.queued_tokens[slots]
    wire_s = group.wire_s
    if request.body_bytes > FIRST_FLIGHT_BYTES:
        rounds = (1 + request.body_bytes // FIRST_FLIGHT_BYTES).bit_length()
        wire_s = wire_s + (rounds - 1) * group.rtt_s
    tpot_s = request.tpot_objective_s
    if tpot_s is None and (by_name := settings.tpot_objectives_s):
        tpot_s = by_name.get(request.objective, by_name.get(request.model))
    if wrong_s is not None:  # what one client would wait: all in flight there wait as well
        wrong_s /= 1.0 + float(np.add.reduce(in_flight)) / len(slots)
    view = View(
        request=request,
        now=now,
        rng=chooser.rng,
        table=table,
        slots=slots,
        judged=table.judged,
        model_id=model_id,
        tokens=tokens,
        cached_tokens=cached_tokens,
        queued_tokens=queued_tokens,
        in_flight=in_flight,
        rtt_s=group.rtt_s,
        wire_s=wire_s,
        probability=p,
        evidence=evidence,
        seconds_per_token=known.seconds_per_token[own_id],
        base_s=known.base_s[model_id],
        times_tried=times_tried,
        cell=known.cell,
        wrong_s=wrong_s,
        tpot_objective_s=tpot_s,
        engines=chooser.engines,
        parts=NO_PARTS,
        demand=demand,
        again=again,
        apart=apart,
        published=None if known.published is None else known.published[judged],
        reported=reported,
        answers=standing.answers,
        knows_outcomes=bool(is_known or (reported is not None and some(reported))),
        chain=chain,
        chains=chains,
        fetched_tokens=fetched_tokens,
        left_tokens=None if match is None or match.left is None else match.left[slots] * tokens,
        sampled=sampled,
    )
    if reason and group.plain is not None:  # nothing is known of modes then
        plain = replace(group.plain, prefillers=group.prefillers and group.plain.prefillers)
        return view_of(chooser, request, tried, plain, special, now)
    if group.parts or special:
        parts = Parts([*group.parts.items(), *special.items()]) if special else group.parts
        view.parts = parts
        if "prescore" in parts.points:
            prescore(view, parts, group, match)
    return group, view, by_model, reason


def _own_prefixes(
    prefixes: PrefixBeliefs,
    table: EndpointTable,
    request: Request,
    group: Group,
    by_model: Floats,
    columns: tuple[Floats, Floats, Floats | None, Floats | None],
    now: float,
) -> dict[int, Chain]:
    """Look up the prompts of modes that begin differently; return their chains.

    `columns` has the tokens, the cached and fetched ones and `View.again` of the candidates, and is
    corrected for those in such modes.
    """
    (tokens, cached_tokens, fetched_tokens, again), chains = columns, {}
    for model_id, mode in table.modes.items():
        at = np.flatnonzero(group.model_id == model_id)
        if mode.own_prefix and len(at):
            slots = group.slots[at]
            match = prefixes.look_up(request, mode.name, table.models, by_model, now)
            fetched = np.zeros(table.capacity) if match.fetched is None else match.fetched
            cached_tokens[at] = (match.shares - fetched)[slots] * tokens[at]
            if fetched_tokens is not None:
                fetched_tokens[at] = fetched[slots] * tokens[at]
            if again is not None:
                again[at] = 0.0 if match.again is None else match.again[slots]
            chains[model_id] = match.chain
    return chains


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
