"""The messages between pickers: loads by address, and small typed records.

`laar.sharing.batches` writes and reads them.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from laar.accuracy.online import Taken
from laar.core.engine_model import Sample
from laar.health import Word

__all__ = [
    "NO_LOAD",
    "Cleared",
    "Ended",
    "Entered",
    "Heard",
    "Hello",
    "Judged",
    "Learned",
    "Leaving",
    "Load",
    "Record",
    "Reported",
    "StoredAt",
    "Weights",
]


class Load(NamedTuple):
    """All that one picker has in flight at an endpoint, and its traffic there since its start.

    A state, not a change: the one that arrives last is right, and the next one replaces a lost one.
    """

    in_flight: float
    queued_tokens: float
    queued_uncached_tokens: float
    prefill_tokens: float
    ahead_s: float
    sent: float
    sent_s: float
    hidden_s: float
    read_s: float


NO_LOAD = Load(*[0.0] * len(Load._fields))
"""Nothing in flight, and nothing sent."""


class Entered(NamedTuple):
    """A prompt was sent to an endpoint.

    Its chain is the first `known` blocks of one that ends, or has an anchor, at `anchor`, then
    `tail`. `entry` names it for its end, ascending for an origin.
    """

    entry: int
    address: str
    total_bytes: int
    known: int
    anchor: int
    tail: array[int]


class Ended(NamedTuple):
    """The request of an entry ended, well or not; `share` is the cached share, if reported."""

    entry: int
    ok: bool
    share: float | None


class Cleared(NamedTuple):
    """An endpoint's cache is empty."""

    address: str


class StoredAt(NamedTuple):
    """An endpoint keeps an answer."""

    response_id: str
    address: str
    session: str


class Heard(NamedTuple):
    """Health of an endpoint."""

    address: str
    word: Word


class Learned(NamedTuple):
    """A sample of an endpoint's engine, taken from one answer."""

    address: str
    sample: Sample


class Reported(NamedTuple):
    """An outcome that a client reported."""

    outcome: Taken


class Judged(NamedTuple):
    """A client reported an outcome to a picker that did not decide: the one that did takes it."""

    decision_id: str
    correct: bool


class Weights(NamedTuple):
    """Weights that won at the tuner of another picker, and their cost."""

    weights: dict[str, float]
    cost_s: float


class Hello(NamedTuple):
    """A picker begins, or has missed something: all others are to send their loads in full."""


class Leaving(NamedTuple):
    """A picker ends; nothing that it had in flight counts any more."""


Record = (
    Entered
    | Ended
    | Cleared
    | StoredAt
    | Heard
    | Learned
    | Reported
    | Judged
    | Weights
    | Hello
    | Leaving
)
