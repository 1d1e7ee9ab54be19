"""The record that explains a decision, without its prompt.

It holds ids, names, counts, and references to the arrays that the scorers saw. Creating one takes a
few microseconds (`laar.telemetry.decisions`), so every decision can have one; rows and text are
built from it on demand. It never holds any part of the prompt, which must neither fill memory nor
be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laar.core.apart import Encoder
from laar.core.eligible import Eligible
from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View
from laar.core.membership import EndpointSpec
from laar.core.request import Trace

if TYPE_CHECKING:
    from laar.core.decision import Completion, DirectorSettings


@dataclass(frozen=True, slots=True)
class Readings:
    """Columns of the endpoint table at the decision, kept only if a filter removed an endpoint."""

    failures: Floats
    waiting: Floats
    kv_usage: Floats
    generates: Mask
    asleep: Floats


@dataclass(slots=True, kw_only=True)
class DecisionRecord:
    """A decision without its prompt.

    `view` is the scorers' view without the request, and read-only; None if the body was not read.
    `specs` are the endpoints known at the time, by slot, and `settings` those in effect. `time_s`
    is wall-clock time. `tuner_window` is the tuner's window in which the outcome counts, 0 for
    none. `prefiller` is the endpoint that prefills the prompt, if not the picked one, `encoders`
    are those that encode its images, sound and videos, in order. `adapter` is the LoRA adapter of
    `model` that answers, if one was requested. `left_out` has health's reasons for excluding
    candidates, by slot. `generates` is copied from the request if there are `readings`; `goes_on`:
    the request continues an answer stored by an endpoint. `end`, the endpoint that `served`, the
    model that `answered` and endpoints that `failed` are set later.
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
    encoders: tuple[Encoder, ...] = ()
    adapter: str = ""
    end: Completion | None = None
    served: str = ""
    answered: str = ""
    failed: tuple[str, ...] = ()
    generates: bool | None = None
    goes_on: bool = False
    left_out: Mapping[int, str] | None = None
