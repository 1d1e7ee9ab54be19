"""The record of a decision: the terms of every candidate, and why the others were left out."""

from __future__ import annotations

from laar.core.endpoints import POOL_LABEL, EndpointSpec
from laar.explain.decision_record import DecisionRecord, Readings
from laar.explain.fields import APART, COMPLETION, ENDPOINT, HEAD, TAIL, columns_of, values_of
from laar.explain.sentence import ranking, sentence, why_not

__all__ = ["MAX_ROWS", "explained", "record"]

MAX_ROWS = 32
"""Candidates and filtered endpoints in one record; the rest is cut."""


def record(account: DecisionRecord, *, ranked: bool = False) -> dict[str, object]:
    """The decision as plain JSON values: the fields that `laar.explain.fields` declares.

    `picked` is the position in `candidates`, of which the best `MAX_ROWS` are there; terms of the
    cost are missing where the policy does not price. `unlike` is there for a request unlike
    anything measured, whose probabilities are base rates. `tuner` is there while a tuner sets the
    weights: `window` is the one that the outcome counts in, 0 for none.

    Args:
        account: of the decision.
        ranked: candidates by rank, the picked one first; else in no order, which costs less.
    """
    view = account.view
    shown = values_of(HEAD, account)
    shown["picked"], shown["candidates"] = _rows(account, ranked=ranked)
    shown |= values_of(TAIL, account)
    if account.prefiller:
        shown |= values_of(APART, account)
    if view is not None and view.unlike:
        shown["unlike"] = True
    if view is not None and view.weights is not None:
        shown["tuner"] = {"window": account.tuner_window, "weights": dict(view.weights)}
    if account.readings is not None:
        shown["filtered"] = filtered(account)
    if account.end is not None:
        shown["completion"] = values_of(COMPLETION, (account, account.end))
    return shown


def explained(account: DecisionRecord) -> dict[str, object]:
    """The record for a reader: candidates by rank, and the sentence."""
    shown = record(account, ranked=True)
    shown["sentence"] = sentence(account)
    return shown


def _rows(account: DecisionRecord, *, ranked: bool) -> tuple[int, list[dict[str, object]]]:
    """The picked candidate's position, and the candidates."""
    view = account.view
    if view is None or account.scores is None:
        return 0, [_endpoint(account.specs[account.slot])]
    by_name = columns_of(account, view)
    names, columns = tuple(by_name), list(by_name.values())
    slots, picked, specs = view.slots, account.position, account.specs
    best: list[int] = []
    if ranked or len(slots) > MAX_ROWS:
        best = ranking(account)[:MAX_ROWS]
        slots, picked = slots[best], 0
        columns = [column[best] for column in columns]
    values = zip(*[column.tolist() for column in columns], strict=True)
    rows = [
        _endpoint(specs[slot]) | dict(zip(names, row, strict=True))
        for slot, row in zip(slots.tolist(), values, strict=True)
    ]
    if ranked:
        for rank, (shown, at) in enumerate(zip(rows, best, strict=True), 1):
            shown["rank"] = rank
            cause, why = why_not(account, at)
            if cause is not None:
                shown["why"] = why
    return picked, rows


def _endpoint(spec: EndpointSpec) -> dict[str, object]:
    return {column.name: column.read(spec) for column in ENDPOINT}


def filtered(account: DecisionRecord) -> list[dict[str, object]]:
    """Endpoints that were no candidates, each with the reason."""
    if account.readings is None:
        return []
    assert account.view is not None
    left: set[int] = set(account.view.slots.tolist())
    rows = []
    for slot, spec in account.specs.items():
        if slot not in left:
            why = _why_filtered(account, account.readings, slot)
            rows.append(_endpoint(spec) | {"why": why})
            if len(rows) == MAX_ROWS:
                break
    return rows


def _why_filtered(account: DecisionRecord, readings: Readings, slot: int) -> str:
    spec, asked = account.specs[slot], account.asked_model
    filters = account.settings.filters
    behind = account.settings.aliases.get(asked)
    if asked and behind != () and not {*(behind or ()), asked}.intersection(spec.models):
        return f"does not serve {asked}"
    if account.pool and spec.labels.get(POOL_LABEL) != account.pool:
        return f"not of the pool {account.pool}"
    if account.subset is not None:
        host = spec.address.rpartition(":")[0].strip("[]")
        if not {spec.address, host, f"[{host}]"} & account.subset:
            return "outside the gateway's subset"
    if not spec.takes_requests:
        return f"answers no requests: its role is {spec.role}"
    failures = int(readings.failures[slot])
    if failures >= filters.max_failures:
        return f"unreachable: {failures} scrapes or probes failed in a row"
    if account.left_out and slot in account.left_out:
        return account.left_out[slot]
    if readings.waiting[slot] > filters.max_waiting:
        return f"saturated: {readings.waiting[slot]:.0f} requests wait in its engine"
    if readings.kv_usage[slot] > filters.max_kv_usage:
        return f"saturated: {readings.kv_usage[slot]:.0%} of its KV cache is in use"
    return "left out by a filter"
