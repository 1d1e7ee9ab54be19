"""Render a decision's record: the terms of every candidate, and why others were excluded.

The page, the decision log and `laar explain` are all built from this rendering. Units are in the
names; a field without a unit is a count, a share in 0..1, or text.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import Terms
from laar.core.decision import Completion, Decision
from laar.core.eligible import in_all
from laar.core.filters import MAX_FAILURES, MAX_KV_USAGE
from laar.core.interfaces import View
from laar.core.plugin import gather
from laar.explain.decision_record import DecisionRecord, TableState
from laar.explain.sentence import ranking, sentence, why_not
from laar.fleet.endpoints import Floats
from laar.fleet.membership import EndpointSpec, key_of
from laar.fleet.names import is_among

MAX_ROWS = 32
"""Maximum number of candidates, and of filtered endpoints, in a record; the rest are dropped."""

_TAKEN_OUT = -1.0
"""Score of excluded candidates in logs, which have columns of numbers but not the mask
(`Decision.eligible`)."""


def shown(record: DecisionRecord, *, explained: bool = False) -> dict[str, object]:
    """Return the decision as plain JSON values.

    `picked` is a position in `candidates`, the best `MAX_ROWS` of them; cost terms are missing if
    the policy has no cost. `wrong_answer_s` is missing if the client pays for a wrong answer with
    the next attempt.

    Args:
        record: the record.
        explained: also return the sentence, and sort the candidates by rank, the picked candidate
            first; this takes longer. Probabilities about which nothing is known are then None, and
            costs do without them.
    """
    decision = record.decision
    view = decision.view
    fields = _decision(record)
    fields["picked"], fields["candidates"] = _rows(record, ranked=explained)
    if view is not None and record.readings is not None:
        fields["filtered"] = _filtered(record, view, record.readings)
    if record.end is not None:
        fields["completion"] = _completion(record, record.end)
    if explained:
        fields["sentence"] = sentence(record)
    return fields


def _decision(record: DecisionRecord) -> dict[str, object]:
    decision, request, view = record.decision, record.decision.request, record.decision.view
    language, bucket_tokens, task = ("", 0, "") if view is None else view.cell
    fields = {
        "id": decision.id,
        "time": record.time_s,
        "request_id": request.id,
        "mode": "shadow" if request.shadow else "enforce",
        "policy": decision.policy,
        "reason": decision.reason,
        "asked_model": request.model,
        "language": language,
        "bucket_tokens": bucket_tokens,
        "task": task,
        "body_bytes": request.body_bytes,
        "endpoint": record.specs[decision.slot].key,
        "model": decision.model,
        "candidates_total": 1 if view is None else len(view.slots),
        "tried_models": decision.tried[:-1],
        "exhausted": decision.exhausted,
    }
    # The request that this one accompanies; what a wrong answer costs, unless that is the next
    # attempt; and what plug-ins add.
    rare: dict[str, object] = {
        "companion_of": request.companion_of,
        "wrong_answer_s": view.wrong_s if view is not None and view.knows_outcomes else None,
    }
    for more in gather(decision, "record"):
        rare |= more
    return fields | {name: value for name, value in rare.items() if value}


def _completion(record: DecisionRecord, end: Completion) -> dict[str, object]:
    """Return how the request ended; a status of 0 means that there was no answer."""
    return {
        "status": end.status or 0,
        "cause": end.cause,
        "served": record.served and key_of(record.served, record.decision.rank),
        "model": record.answered,
        "latency_s": end.latency_s,
        "ttft_s": end.ttft_s,
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "cached_tokens": end.cached_tokens,
        "failed": record.decision.flight.failed,
    }


def _endpoint(spec: EndpointSpec, model: str = "") -> dict[str, object]:
    return {"endpoint": spec.key, "model": model or spec.models[0], "region": spec.region}


def _rows(record: DecisionRecord, *, ranked: bool) -> tuple[int, list[dict[str, object]]]:
    """Return the picked candidate's position in the rows, and a row for each candidate."""
    decision, view = record.decision, record.decision.view
    if view is None or decision.scores is None:
        return 0, [_endpoint(record.specs[decision.slot])]
    by_name = _columns(decision, view, decision.scores)
    if ranked and not view.knows_outcomes:
        if view.terms is not None:
            by_name["cost_s"] = shown_cost_s(view, view.terms)
        by_name["probability"] = np.full(len(view.slots), None)
    names, columns = tuple(by_name), list(by_name.values())
    slots, model_id = view.slots, view.model_id
    picked, specs = decision.position, record.specs
    best: list[int] = []
    if ranked or len(slots) > MAX_ROWS:
        best = ranking(decision)[:MAX_ROWS]
        slots, model_id, picked = slots[best], model_id[best], 0
        columns = [column[best] for column in columns]
    values = zip(*[column.tolist() for column in columns], strict=True)
    rows = [
        _endpoint(specs[slot], view.judged[model]) | dict(zip(names, row, strict=True))
        for slot, model, row in zip(slots.tolist(), model_id.tolist(), values, strict=True)
    ]
    if ranked:
        for rank, (row, at) in enumerate(zip(rows, best, strict=True), 1):
            row["rank"] = rank
            cause, why = why_not(record, at)
            if cause is not None:
                row["why"] = why
    return picked, rows


def shown_cost_s(view: View, terms: Terms) -> Floats:
    """Return the costs; unless outcomes are known, they contain no chance of a wrong answer."""
    judged = view.knows_outcomes or view.wrong_s is not None
    return terms.cost_s if judged else terms.cost_s * view.probability


def _columns(of: Decision, view: View, scores: Floats) -> dict[str, Floats]:
    """Return the columns over a decision's candidates, by name.

    If the policy has no cost, there are no terms, only round trips.
    """
    may = in_all(of.eligible)
    columns: dict[str, Floats] = {
        "probability": view.probability,
        "evidence": view.evidence,
        "tokens": view.tokens,
        "cached_tokens": view.held_tokens,
        "queued_tokens": view.queued_tokens,
        "score": scores if may is None else np.where(may, scores, _TAKEN_OUT),
    }
    if (terms := view.terms) is None:
        return columns | {"rtt_s": view.rtt_s}
    columns |= terms.added
    return columns | {
        "rtt_s": terms.rtt_s,
        "base_s": terms.base_s,
        "prefill_s": terms.prefill_s,
        "queue_s": terms.queue_s,
        "penalty": terms.penalty,
        "latency_s": terms.latency_s,
        "answers": terms.each(terms.answers, 1.0),
        "cost_s": terms.cost_s,
        "ttft_s": terms.all_ttft_s,
        "others_s": terms.each(terms.others_s),
    }


def _filtered(record: DecisionRecord, view: View, readings: TableState) -> list[dict[str, object]]:
    """Return the endpoints that filters removed, each with the reason; other models' last."""
    asked, specs = record.decision.request.model, record.specs
    names = {asked, *record.decision.settings.aliases.get(asked, ())}
    removed = specs.keys() - view.slots.tolist()
    ordered = sorted(removed, key=lambda slot: (names.isdisjoint(specs[slot].models), slot))
    return [
        _endpoint(specs[slot]) | {"why": _why_filtered(record, view, readings, slot)}
        for slot in ordered[:MAX_ROWS]
    ]


def _why_filtered(record: DecisionRecord, view: View, readings: TableState, slot: int) -> str:
    decision, request = record.decision, record.decision.request
    spec, asked = record.specs[slot], request.model
    behind = decision.settings.aliases.get(asked)
    if asked and behind != () and not {*(behind or ()), asked}.intersection(spec.models):
        return f"does not serve {asked}"
    if request.pool and request.pool not in spec.pools:
        return f"not in the pool {request.pool}"
    if request.subset is not None and not is_among(spec.address, request.subset):
        return "outside the gateway's subset" + ("" if request.generates else ", or lacks the path")
    if spec.drains:
        return "drains: it gets no new requests"
    if not spec.takes_requests:
        return f"does not serve clients: its role is {spec.role}"
    if not asked or asked in decision.settings.aliases:
        picks = readings.generates[view.slots[0]]
        if picks == request.generates and readings.generates[slot] != picks:
            return "generates no text" if picks else "generates text, but the request needs none"
    if request.response_id:
        return "does not store the answer that the request continues"
    failures = readings.failures[slot]
    if failures >= MAX_FAILURES:
        many = f"{failures:.0f} probes failed in a row"
        return f"unreachable: {'it refuses connections' if failures == float('inf') else many}"
    if readings.asleep[slot]:
        return "asleep: its engine is waiting to be woken"
    if decision.left_out and slot in decision.left_out:
        return decision.left_out[slot]
    if readings.waiting[slot] > decision.settings.max_waiting:
        return f"saturated: {readings.waiting[slot]:.0f} requests are waiting in its engine"
    if readings.kv_usage[slot] > MAX_KV_USAGE:
        return f"saturated: {readings.kv_usage[slot]:.0%} of its KV cache is in use"
    return "left out by a filter"
