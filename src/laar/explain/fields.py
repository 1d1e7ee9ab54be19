"""Declare each field of a decision's record once.

The page, the decision log, `laar explain` and spans are all built from these tables and columns. A
field of a table has a name in the record, a source, and an OpenTelemetry attribute, which follows
the semantic conventions where they exist (``gen_ai.*``, ``http.*``). Units are in the names; a
field without a unit is a count, a share in 0..1, or text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from laar.core.decision import Completion, Decision
from laar.core.eligible import in_all
from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.core.membership import EndpointSpec, key_of
from laar.explain.decision_record import DecisionRecord

_TAKEN_OUT = -1.0
"""Score of excluded candidates in logs and spans, which have columns of numbers but not the mask
(`Decision.eligible`)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """A field of a decision, its end or its candidates.

    Args:
        name: its name in the record.
        read: returns its value.
        attribute: its attribute in spans; empty if it has none.
    """

    name: str
    read: Callable[[T], Any]
    attribute: str = ""


def _cell(at: int, unread: object) -> Callable[[DecisionRecord], object]:
    return lambda of: unread if (view := of.decision.view) is None else view.cell[at]


DECISION: tuple[Field[DecisionRecord], ...] = (
    Field("id", lambda of: of.decision.id, "laar.decision.id"),
    Field("time", lambda of: of.time_s),
    Field("request_id", lambda of: of.decision.request.id, "laar.request.id"),
    Field("trace_id", lambda of: trace.trace_id if (trace := of.decision.request.trace) else ""),
    Field(
        "mode",
        lambda of: "shadow" if of.decision.request.shadow else "enforce",
        "laar.decision.mode",
    ),
    Field("policy", lambda of: of.decision.policy, "laar.decision.policy"),
    Field("reason", lambda of: of.decision.reason, "laar.decision.reason"),
    Field("asked_model", lambda of: of.decision.request.model, "gen_ai.request.model"),
    Field("language", _cell(0, ""), "laar.request.language"),
    Field("bucket_tokens", _cell(1, 0), "laar.request.bucket_tokens"),
    Field("task", _cell(2, ""), "laar.request.task"),
    Field("body_bytes", lambda of: of.decision.request.body_bytes, "http.request.body.size"),
    Field("endpoint", lambda of: of.specs[of.decision.slot].key, "laar.decision.endpoint"),
    Field("model", lambda of: of.decision.model, "laar.decision.model"),
    Field(
        "candidates_total",
        lambda of: 1 if (view := of.decision.view) is None else len(view.slots),
        "laar.decision.candidates",
    ),
    Field("tried_models", lambda of: of.decision.tried[:-1], "laar.request.tried_models"),
    Field("exhausted", lambda of: of.decision.exhausted, "laar.decision.exhausted"),
)
"""The fields of every decision."""

IF_ANY: tuple[Field[Decision], ...] = (
    Field("prefiller", lambda of: of.prefiller and of.prefiller.address, "laar.decision.prefiller"),
    Field("encoders", lambda of: [it.address for it in of.encoders], "laar.decision.encoders"),
    Field("adapter", lambda of: of.flight.adapter, "laar.decision.adapter"),
)
"""Fields that are left out if they are empty, as for most decisions: other endpoints that prefill
the prompt or encode images, and the LoRA adapter, whose outcomes do not count for the model."""

COMPLETION: tuple[Field[tuple[DecisionRecord, Completion]], ...] = (
    Field("status", lambda of: of[1].status or 0, "http.response.status_code"),
    Field("cause", lambda of: of[1].cause, "laar.end.cause"),
    Field(
        "served",
        lambda of: of[0].served and key_of(of[0].served, of[0].decision.rank),
        "laar.end.endpoint",
    ),
    Field("model", lambda of: of[0].answered, "gen_ai.response.model"),
    Field("latency_s", lambda of: of[1].latency_s, "laar.end.latency_s"),
    Field("ttft_s", lambda of: of[1].ttft_s, "gen_ai.response.time_to_first_chunk"),
    Field("prompt_tokens", lambda of: of[1].prompt_tokens, "gen_ai.usage.input_tokens"),
    Field("completion_tokens", lambda of: of[1].completion_tokens, "gen_ai.usage.output_tokens"),
    Field("cached_tokens", lambda of: of[1].cached_tokens, "gen_ai.usage.cache_read.input_tokens"),
    Field("failed", lambda of: of[0].decision.flight.failed),
)
"""Fields about how the request ended; a status of 0 means that there was no answer."""

ENDPOINT: tuple[Field[EndpointSpec], ...] = (
    Field("endpoint", lambda of: of.key),
    Field("model", lambda of: of.models[0]),
    Field("region", lambda of: of.region),
)
"""Fields that describe an endpoint."""


def values_of(fields: Iterable[Field[T]], of: T) -> dict[str, Any]:
    """Return the values of the fields by name."""
    return {field.name: field.read(of) for field in fields}


def columns_of(of: Decision, view: View, scores: Floats) -> dict[str, Floats]:
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
    if terms.transfer_s is not None:  # prompts may be prefilled elsewhere
        columns["transfer_s"] = terms.transfer_s
    return columns | {
        "rtt_s": terms.rtt_s,
        "base_s": terms.base_s,
        "prefill_s": terms.prefill_s,
        "queue_s": terms.queue_s,
        "slow_s": terms.each(terms.slow_s),
        "penalty": terms.penalty,
        "latency_s": terms.latency_s,
        "answers": terms.each(terms.answers, 1.0),
        "cost_s": terms.cost_s,
        "ttft_s": terms.all_ttft_s,
        "others_s": terms.each(terms.others_s),
    }


def attributes_of(fields: Iterable[Field[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the span attributes of the fields that have a value in the record."""
    known = (field for field in fields if field.attribute and field.name in values)
    return {field.attribute: values[field.name] for field in known}
