"""Why an endpoint was picked: the terms of every candidate, and one sentence a person can read.

An `Account` is what remains of a decision when its prompt is gone: ids, names, counts, and
references to the arrays the scorers saw. It costs a microsecond to make, so every decision can
leave one; rows and words are made only when somebody looks. It never holds a span of the prompt:
the text must neither fill the memory of whoever keeps accounts nor be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from laar.core.cost import Terms
from laar.core.endpoints import POOL_LABEL, EndpointSpec, EndpointTable, Floats
from laar.core.filters import FilterSettings
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE
from laar.core.request import Api, Request

if TYPE_CHECKING:
    from laar.core.director import Completion, Decision

__all__ = ["MAX_ROWS", "Account", "account_of", "explained", "record"]

MAX_ROWS = 32
"""Candidates and filtered endpoints in one record; behind the best so many nobody reads on."""

_MUCH = 1.2  # a ratio below it is not worth a reader's attention

_LANGUAGES = {
    "en": "Latin-script text",
    "ja": "Japanese",
    "zh": "Chinese",
    "ko": "Korean",
    "ru": "Cyrillic-script text",
    "ar": "Arabic",
    "he": "Hebrew",
    "hi": "Hindi",
    "th": "Thai",
    "el": "Greek",
}


@dataclass(frozen=True, slots=True)
class Readings:
    """Columns of the table at the decision, kept only when a filter left somebody out."""

    failures: Floats
    waiting: Floats
    kv_usage: Floats
    read_at: Floats


@dataclass(slots=True, kw_only=True)
class Account:
    """A decision without its prompt.

    `view` is what the scorers saw, without the request, and must not be written to; None when the
    body was not read. `specs` maps every endpoint known at the time from its slot. `time_s` is the
    wall clock's, for people. `end` and `served` come later.
    """

    id: str
    time_s: float
    now: float
    request_id: str
    asked_model: str
    body_bytes: int
    policy: str
    reason: str
    shadow: bool
    slot: int
    picked: str
    model: str
    tried: tuple[str, ...]
    exhausted: bool
    pool: str
    subset: frozenset[str] | None
    position: int
    specs: Mapping[int, EndpointSpec]
    view: View | None
    scores: Floats | None
    readings: Readings | None
    end: Completion | None = None
    served: str = ""


_NO_REQUEST = Request(id="", api=Api.OPAQUE)


def account_of(
    decision: Decision, specs: Mapping[int, EndpointSpec], table: EndpointTable, time_s: float
) -> Account:
    """Keeps what explains a decision; `specs` are the table's endpoints by slot.

    The decision's view loses its request: it outlives it here, and must not keep the prompt.
    """
    request, view = decision.request, decision.view
    readings = None
    if view is not None:
        view.request = _NO_REQUEST
        if len(view.slots) != len(table):
            readings = _readings(table)
    return Account(
        id=decision.id,
        time_s=time_s,
        now=decision.now,
        request_id=request.id,
        asked_model=request.model,
        body_bytes=request.body_bytes,
        policy=decision.policy,
        reason=decision.reason,
        shadow=request.shadow,
        slot=decision.slot,
        picked=decision.address,
        model=decision.model,
        tried=decision.tried[:-1],
        exhausted=decision.exhausted,
        pool=request.pool,
        subset=request.subset,
        position=decision.position,
        specs=specs,
        view=view,
        scores=decision.scores,
        readings=readings,
    )


def _readings(table: EndpointTable) -> Readings:
    return Readings(
        table.failures.copy(), table.waiting.copy(), table.kv_usage.copy(), table.read_at.copy()
    )


# -- the record --------------------------------------------------------------------------------


def record(
    account: Account,
    filters: FilterSettings,
    aliases: Mapping[str, tuple[str, ...]],
    *,
    ranked: bool = False,
) -> dict[str, object]:
    """The decision as plain JSON values: `DecisionRecord` of the protocol buffers, and more.

    Times in seconds. `picked` is the position in `candidates`, of which the best `MAX_ROWS` are
    there; terms of the cost are missing where the policy does not price.

    Args:
        account: of the decision.
        filters: thresholds that were in force.
        aliases: the virtual model names.
        ranked: candidates by rank, the picked one first; else in no order, which costs less.
    """
    view = account.view
    language, bucket, task = view.cell if view is not None else ("", 0, "")
    picked, rows = _rows(account, ranked=ranked)
    shown: dict[str, object] = {
        "id": account.id,
        "time": account.time_s,
        "request_id": account.request_id,
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
    if account.readings is not None:
        shown["filtered"] = filtered(account, filters, aliases)
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
        }
    return shown


def explained(
    account: Account, filters: FilterSettings, aliases: Mapping[str, tuple[str, ...]]
) -> dict[str, object]:
    """The record for a reader: candidates by rank, and the sentence."""
    shown = record(account, filters, aliases, ranked=True)
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
_TERMS = ("rtt_s", "base_s", "prefill_s", "queue_s", "penalty", "latency_s", "cost_s")


def _rows(account: Account, *, ranked: bool) -> tuple[int, list[dict[str, object]]]:
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
        columns += (terms.penalty, terms.latency_s, terms.cost_s)
    slots, picked, specs = view.slots, account.position, account.specs
    if ranked or len(slots) > MAX_ROWS:
        best = ranking(account)
        slots, picked = slots[best], 0
        columns = [column[best] for column in columns]
    rows = []
    values = zip(*[column.tolist() for column in columns], strict=True)
    for slot, row in zip(slots.tolist(), values, strict=True):
        spec = specs[slot]
        told = (spec.address, spec.models[0], spec.region, *row)
        rows.append(dict(zip(names, told, strict=True)))
    if ranked:
        for rank, shown in enumerate(rows, 1):
            shown["rank"] = rank
    return picked, rows


def _endpoint(spec: EndpointSpec) -> dict[str, object]:
    return {"endpoint": spec.address, "model": spec.models[0], "region": spec.region}


def ranking(account: Account) -> list[int]:
    """Positions of the best `MAX_ROWS` candidates, the picked one first."""
    first, scores = account.position, account.scores
    assert scores is not None
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return [first, *(i for i in order if i != first)][:MAX_ROWS]


def filtered(
    account: Account, filters: FilterSettings, aliases: Mapping[str, tuple[str, ...]]
) -> list[dict[str, object]]:
    """Endpoints that were no candidates, each with the reason."""
    if account.readings is None:
        return []
    assert account.view is not None
    left: set[int] = set(account.view.slots.tolist())
    rows = []
    for slot, spec in account.specs.items():
        if slot not in left:
            why = _why_filtered(account, account.readings, slot, filters, aliases)
            rows.append(_endpoint(spec) | {"why": why})
            if len(rows) == MAX_ROWS:
                break
    return rows


def _why_filtered(
    account: Account,
    readings: Readings,
    slot: int,
    filters: FilterSettings,
    aliases: Mapping[str, tuple[str, ...]],
) -> str:
    spec, asked = account.specs[slot], account.asked_model
    behind = aliases.get(asked)
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
    if readings.waiting[slot] > filters.max_waiting:
        return f"saturated: {readings.waiting[slot]:.0f} requests wait in its engine"
    if readings.kv_usage[slot] > filters.max_kv_usage:
        return f"saturated: {readings.kv_usage[slot]:.0%} of its KV cache is in use"
    return "left out by a filter"


# -- the sentence ------------------------------------------------------------------------------


def sentence(account: Account) -> str:
    """Why it won, in words; a second sentence when something degraded."""
    winner = f"{account.model} at {account.picked}"
    view, scores = account.view, account.scores
    if view is None or scores is None:
        return f"{winner} was drawn at random: the body of this kind of request is not read."
    degraded = _DEGRADED.get(account.reason, "")
    if len(view.slots) == 1:
        return f"{winner} was the only candidate.{degraded}"
    rival = ranking(account)[1]
    name = _name(account, view, rival)
    if view.terms is None:
        mine, other = float(scores[account.position]), float(scores[rival])
        return (
            f"{winner} won by the score of {account.policy}: {mine:.3g} against {other:.3g} of "
            f"{name}.{degraded}"
        )
    if scores[rival] >= (1.0 - NEAR_TIE) * scores[account.position]:
        reason = f"cost the same within {NEAR_TIE:.0%}, and it had the least queued or the luck"
        return f"{winner} won a tie: {name} {reason}.{degraded}"
    margin_s = float(view.terms.cost_s[rival] - view.terms.cost_s[account.position])
    why = _why(view, view.terms, account.position, rival)
    return f"{winner} won by {_seconds(margin_s)}: {name} {why}.{degraded}"


_DEGRADED = {
    "degraded-assessor": " What is known of the models could not be used: all counted alike.",
    "degraded-prefixes": " What is believed of the caches could not be used.",
    "degraded-scorer": " The policy's scorer failed: the fewest requests in flight decided.",
}


def _name(account: Account, view: View, rival: int) -> str:
    """The rival's model, or its address when the winner serves the same one."""
    spec = account.specs[int(view.slots[rival])]
    return spec.address if spec.models[0] == account.model else spec.models[0]


def _why(view: View, terms: Terms, winner: int, rival: int) -> str:
    """What speaks against the rival, and for it."""
    if view.times_tried[rival] > view.times_tried[winner]:
        return "was tried already"
    mine, other = float(view.probability[winner]), float(view.probability[rival])
    took = f"{_seconds(terms.latency_s[rival])} against {_seconds(terms.latency_s[winner])}"
    if terms.latency_s[rival] < terms.latency_s[winner]:
        return f"is faster ({took}) but right with P={other:.2f} against {mine:.2f}{_on(view)}"
    slower = f"slower ({took}{_largest_difference(view, terms, winner, rival)})"
    if other > mine:
        return f"is more often right (P={other:.2f} against {mine:.2f}) but {slower}"
    if mine > _MUCH * other:
        return f"is {slower}, and right with P={other:.2f} against {mine:.2f}{_on(view)}"
    return f"is {slower}"


def _on(view: View) -> str:
    language, bucket, task = view.cell
    if not bucket:
        return ""
    kind = f" {task}" if task not in ("", "generic") else ""
    length = _tokens(float(view.tokens.max()))
    return f" on {length} tokens of{kind} {_LANGUAGES.get(language, language)}"


def _largest_difference(view: View, terms: Terms, winner: int, rival: int) -> str:
    """Which term makes most of the difference, in words."""
    uncached = view.tokens[rival] - view.cached_tokens[rival]
    told = (
        (terms.queue_s, f"{_tokens(view.queued_tokens[rival])} tokens are queued there"),
        (terms.prefill_s, f"{_tokens(uncached)} tokens to read"),
        (terms.rtt_s, f"a round trip of {_seconds(terms.rtt_s[rival])}"),
        (terms.base_s, "its model takes longer to answer"),
    )
    extra = [float(term[rival] - term[winner]) for term, _ in told]
    largest = int(np.argmax(extra))
    return f"; {told[largest][1]}" if extra[largest] > 0.0 else ""


def _tokens(count: float) -> str:
    return f"{count / 1000:.0f}k" if count >= 10_000 else f"{count:.0f}"


def _seconds(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
