"""The record of a decision without its prompt: a `DecisionRecord`, to explain it by.

Ids, names, counts, and references to the arrays the scorers saw. It costs some microseconds to
make, so every decision can leave one; rows and words are made from it on request. It never holds a
span of the prompt: the text must neither fill the memory nor be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from laar.core.eligible import Eligible
from laar.core.endpoints import EndpointTable, Floats, Mask
from laar.core.interfaces import View
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request, Trace

if TYPE_CHECKING:
    from laar.core.decision import Completion, Decision, DirectorSettings


@dataclass(frozen=True, slots=True)
class Readings:
    """Columns of the table at the decision, kept only when a filter left an endpoint out."""

    failures: Floats
    waiting: Floats
    kv_usage: Floats
    generates: Mask


@dataclass(slots=True, kw_only=True)
class DecisionRecord:
    """A decision without its prompt.

    `view` is the scorers' view, without the request, and must not be written to; None when the body
    was not read. `specs` maps every endpoint known at the time from its slot. `time_s` is the wall
    clock's, for readers. `settings` were in force then. `prefiller` reads the prompt if another one
    does than the one that was picked. `adapter` answers in place of `model`, where one of its LoRA
    adapters was asked for. `left_out` has by slot the reasons why health left candidates out.
    `generates` is the request's, and `goes_on` is true for one that goes on from an answer that an
    endpoint keeps. `end`, `served`, the model that `answered`, and `failed`, those that Envoy tried
    before, come later.
    """

    id: str
    settings: DirectorSettings
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
    eligible: Eligible | None
    readings: Readings | None
    trace: Trace | None = None
    prefiller: str = ""
    adapter: str = ""
    end: Completion | None = None
    served: str = ""
    answered: str = ""
    failed: tuple[str, ...] = ()
    generates: bool | None = None
    goes_on: bool = False
    left_out: Mapping[int, str] | None = None


_NO_REQUEST = Request(id="", api=Api.OPAQUE)


def record_of(
    decision: Decision, specs: Mapping[int, EndpointSpec], table: EndpointTable, time_s: float
) -> DecisionRecord:
    """Return the record that explains a decision; `specs` are the endpoints by slot.

    The view is kept without its request: the record outlives it, and must not keep the prompt.
    """
    request, view = decision.request, decision.view
    readings = None
    if view is not None:
        view = replace(view, request=_NO_REQUEST)
        if len(view.slots) != len(table):
            readings = _readings(table)
    return DecisionRecord(
        id=decision.id,
        settings=decision.settings,
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
        eligible=decision.eligible,
        readings=readings,
        trace=request.trace,
        prefiller=decision.prefiller.address if decision.prefiller is not None else "",
        adapter=decision.flight.adapter,
        left_out=decision.left_out,
        generates=request.generates,
        goes_on=bool(request.response_id),
    )


def _readings(table: EndpointTable) -> Readings:
    return Readings(
        table.failures.copy(),
        table.waiting.copy(),
        table.kv_usage.copy(),
        table.generates.copy(),
    )
