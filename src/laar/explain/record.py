"""The record of a decision: the terms of every candidate, and why the others were left out."""

from __future__ import annotations

from laar.core.endpoints import POOL_LABEL, EndpointSpec
from laar.explain.decision_record import DecisionRecord, Readings
from laar.explain.sentence import ranking, sentence, why_not

__all__ = ["MAX_ROWS", "explained", "record"]

MAX_ROWS = 32
"""Candidates and filtered endpoints in one record; the rest is cut."""


def record(account: DecisionRecord, *, ranked: bool = False) -> dict[str, object]:
    """The decision as plain JSON values: `DecisionRecord` of the protocol buffers, and more.

    Times in seconds. `picked` is the position in `candidates`, of which the best `MAX_ROWS` are
    there; terms of the cost are missing where the policy does not price. `unlike` is there for a
    request unlike anything measured, whose probabilities are base rates. `tuner` is there while a
    tuner sets the weights: `window` is the one that the outcome counts in, 0 for none.

    Args:
        account: of the decision.
        ranked: candidates by rank, the picked one first; else in no order, which costs less.
    """
    view = account.view
    language, bucket, task = view.cell if view is not None else ("", 0, "")
    picked, rows = _rows(account, ranked=ranked)
    shown: dict[str, object] = {
        "id": account.id,
        "time": account.time_s,
        "request_id": account.request_id,
        "trace_id": account.trace.trace_id if account.trace is not None else "",
        "mode": "shadow" if account.shadow else "enforce",
        "policy": account.policy,
        "reason": account.reason,
        "asked_model": account.asked_model,
        "language": language,
        "bucket_tokens": bucket,
        "task": task,
        "body_bytes": account.body_bytes,
        "endpoint": account.picked,
        "model": account.model,
        "picked": picked,
        "candidates": rows,
        "candidates_total": len(view.slots) if view is not None else 1,
        "tried_models": account.tried,
        "exhausted": account.exhausted,
    }
    if view is not None and view.unlike:
        shown["unlike"] = True
    if view is not None and view.weights is not None:
        shown["tuner"] = {"window": account.tuner_window, "weights": dict(view.weights)}
    if account.readings is not None:
        shown["filtered"] = filtered(account)
    end = account.end
    if end is not None:
        shown["completion"] = {
            "status": end.status or 0,
            "cause": end.cause,
            "served": account.served,
            "latency_s": end.latency_s,
            "ttft_s": end.ttft_s,
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": end.completion_tokens,
            "cached_tokens": end.cached_tokens,
            "failed": account.failed,
        }
    return shown


def explained(account: DecisionRecord) -> dict[str, object]:
    """The record for a reader: candidates by rank, and the sentence."""
    shown = record(account, ranked=True)
    shown["sentence"] = sentence(account)
    return shown


_BELIEFS = (
    "endpoint",
    "model",
    "region",
    "probability",
    "evidence",
    "tokens",
    "cached_tokens",
    "queued_tokens",
    "score",
)
_TERMS = (
    *("rtt_s", "base_s", "prefill_s", "queue_s", "slow_s"),
    *("penalty", "latency_s", "answers", "cost_s", "ttft_s", "others_s"),
)


def _rows(account: DecisionRecord, *, ranked: bool) -> tuple[int, list[dict[str, object]]]:
    """The picked candidate's position, and the candidates."""
    view, scores = account.view, account.scores
    if view is None or scores is None:
        return 0, [_endpoint(account.specs[account.slot])]
    columns = [
        *(view.probability, view.evidence, view.tokens, view.cached_tokens, view.queued_tokens),
        scores,
    ]
    terms = view.terms
    if terms is None:
        names: tuple[str, ...] = (*_BELIEFS, "rtt_s")
        columns.append(view.rtt_s)
    else:
        names = _BELIEFS + _TERMS
        columns += (terms.rtt_s, terms.base_s, terms.prefill_s, terms.queue_s)
        columns += (terms.all_slow_s, terms.penalty, terms.latency_s)
        columns += (terms.all_answers, terms.cost_s, terms.all_ttft_s, terms.all_others_s)
    slots, picked, specs = view.slots, account.position, account.specs
    best: list[int] = []
    if ranked or len(slots) > MAX_ROWS:
        best = ranking(account)[:MAX_ROWS]
        slots, picked = slots[best], 0
        columns = [column[best] for column in columns]
    rows = []
    values = zip(*[column.tolist() for column in columns], strict=True)
    for slot, row in zip(slots.tolist(), values, strict=True):
        spec = specs[slot]
        told = (spec.address, spec.models[0], spec.region, *row)
        rows.append(dict(zip(names, told, strict=True)))
    if ranked:
        for rank, (shown, slot, at) in enumerate(zip(rows, slots.tolist(), best, strict=True), 1):
            shown["rank"] = rank
            if scores[at] < 0.0:
                shown["why"] = why_not(specs[slot], view.tokens[at])
    return picked, rows


def _endpoint(spec: EndpointSpec) -> dict[str, object]:
    return {"endpoint": spec.address, "model": spec.models[0], "region": spec.region}


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
