"""Render a decision's record: the terms of every candidate, and why others were excluded."""

from __future__ import annotations

from itertools import islice

from laar.core.filters import MAX_FAILURES, MAX_KV_USAGE
from laar.core.interfaces import View
from laar.core.names import is_among
from laar.explain.decision_record import DecisionRecord, Readings
from laar.explain.fields import COMPLETION, DECISION, ENDPOINT, IF_ANY, columns_of, values_of
from laar.explain.sentence import ranking, sentence, why_not

MAX_ROWS = 32
"""Maximum number of candidates, and of filtered endpoints, in a record; the rest are dropped."""


def shown(record: DecisionRecord, *, explained: bool = False) -> dict[str, object]:
    """Return the decision as plain JSON values: the fields that `laar.explain.fields` declares.

    `picked` is a position in `candidates`, the best `MAX_ROWS` of them; cost terms are missing if
    the policy has no cost. `unlike` is present if the request is unlike anything measured, so that
    probabilities are mostly base rates. `tuner` is present while a tuner sets the weights; its
    `window` is the one that the outcome belongs to, or 0.

    Args:
        record: the record.
        explained: also return the sentence, and sort the candidates by rank, the picked candidate
            first; this takes longer.
    """
    decision = record.decision
    view = decision.view
    fields = values_of(DECISION, record)
    fields |= {name: value for name, value in values_of(IF_ANY, decision).items() if value}
    fields["picked"], fields["candidates"] = _rows(record, ranked=explained)
    if view is not None and view.unlike:
        fields["unlike"] = True
    if view is not None and view.weights is not None:
        fields["tuner"] = {"window": decision.weights_version, "weights": dict(view.weights)}
    if view is not None and record.readings is not None:
        fields["filtered"] = _filtered(record, view, record.readings)
    if record.end is not None:
        fields["completion"] = values_of(COMPLETION, (record, record.end))
    if explained:
        fields["sentence"] = sentence(record)
    return fields


def _rows(record: DecisionRecord, *, ranked: bool) -> tuple[int, list[dict[str, object]]]:
    """Return the picked candidate's position in the rows, and a row for each candidate."""
    decision, view = record.decision, record.decision.view
    if view is None or decision.scores is None:
        return 0, [values_of(ENDPOINT, record.specs[decision.slot])]
    by_name = columns_of(decision, view, decision.scores)
    names, columns = tuple(by_name), list(by_name.values())
    slots, picked, specs = view.slots, decision.position, record.specs
    best: list[int] = []
    if ranked or len(slots) > MAX_ROWS:
        best = ranking(decision)[:MAX_ROWS]
        slots, picked = slots[best], 0
        columns = [column[best] for column in columns]
    values = zip(*[column.tolist() for column in columns], strict=True)
    rows = [
        values_of(ENDPOINT, specs[slot]) | dict(zip(names, row, strict=True))
        for slot, row in zip(slots.tolist(), values, strict=True)
    ]
    if ranked:
        for rank, (row, at) in enumerate(zip(rows, best, strict=True), 1):
            row["rank"] = rank
            cause, why = why_not(record, at)
            if cause is not None:
                row["why"] = why
    return picked, rows


def _filtered(record: DecisionRecord, view: View, readings: Readings) -> list[dict[str, object]]:
    """Return the endpoints that filters removed, each with the reason."""
    left: set[int] = set(view.slots.tolist())
    removed = islice((slot for slot in record.specs if slot not in left), MAX_ROWS)
    return [
        values_of(ENDPOINT, record.specs[slot])
        | {"why": _why_filtered(record, view, readings, slot)}
        for slot in removed
    ]


def _why_filtered(record: DecisionRecord, view: View, readings: Readings, slot: int) -> str:
    decision, request = record.decision, record.decision.request
    spec, asked = record.specs[slot], request.model
    behind = decision.settings.aliases.get(asked)
    if asked and behind != () and not {*(behind or ()), asked}.intersection(spec.models):
        return f"does not serve {asked}"
    if request.pool and request.pool not in spec.pools:
        return f"not in the pool {request.pool}"
    if request.subset is not None and not is_among(spec.address, request.subset):
        return "outside the gateway's subset" + ("" if request.generates else ", or lacks the path")
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
