"""The record of a decision without its prompt: a `DecisionRecord`, to explain it by.

Ids, names, counts, and references to the arrays the scorers saw. It costs some microseconds to
make (`laar.telemetry.decisions`), so every decision can leave one; rows and words are made from it
on request. It never holds a span of the prompt: the text must neither fill the memory nor be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laar.core.eligible import Eligible
from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View
from laar.core.membership import EndpointSpec
from laar.core.request import Trace

if TYPE_CHECKING:
    from laar.core.decision import Completion, DirectorSettings


@dataclass(frozen=True, slots=True)
class Readings:
    """Columns of the table at the decision, kept only when a filter left an endpoint out."""

    failures: Floats
    waiting: Floats
    kv_usage: Floats
    generates: Mask
    asleep: Floats


@dataclass(slots=True, kw_only=True)
class DecisionRecord:
    """A decision without its prompt.

    `view` is the scorers' view, without the request, and must not be written to; None when the body
    was not read. `specs` maps every endpoint known at the time from its slot. `time_s` is the wall
    clock's, for readers. `settings` were in force then. `tuner_window` is the tuner's window that
    the outcome counts in, 0 for none. `prefiller` reads the prompt if another one does than the one
    that was picked. `adapter` answers in place of `model`, where one of its LoRA adapters was asked
    for. `left_out` has by slot the reasons why health left candidates out. `generates` is the
    request's, known where there are `readings`, and `goes_on` is true for one that goes on from an
    answer that an endpoint keeps. `end`, `served`, the model that `answered`, and `failed`, those
    that Envoy tried before, come later.
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
    tuner_window: int = 0
    prefiller: str = ""
    adapter: str = ""
    end: Completion | None = None
    served: str = ""
    answered: str = ""
    failed: tuple[str, ...] = ()
    generates: bool | None = None
    goes_on: bool = False
    left_out: Mapping[int, str] | None = None
