"""The messages between pickers: loads by address, and small typed records.

Each kind is declared once: its tag, its fields and their bounds. `laar.sharing.batches` serializes
them.
"""

from __future__ import annotations

from array import array
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from laar.accuracy.difficulty import Repeat
from laar.accuracy.online import Taken
from laar.health import Word
from laar.plugins.deadly import DEATHS
from laar.prefix.blocks import blocks_in
from laar.prefix.match import Context
from laar.speeds.engine_model import Sample
from laar.untrusted import LARGEST, MAX_TEXT_CHARS, Amount, Count, Text

_MAX_BLOCKS = 65_536
_MAX_POOLS = 64
_MAX_CHANGES_BYTES = 16 << 10  # 256 documents

Share = Annotated[float, Meta(ge=0, le=1)]
Hashes = Annotated[bytes, Meta(max_length=8 * _MAX_BLOCKS)]
"""Block hashes as `to_bytes` serializes them."""


def to_bytes(hashes: array[int]) -> bytes:
    """Return the hashes as 64-bit integers, little-endian."""
    return np.asarray(hashes, "<u8").tobytes()


def from_bytes(data: bytes) -> array[int]:
    """Return the hashes that `to_bytes` wrote.

    Raise `ValueError` if the last hash is incomplete.
    """
    return array("Q", np.frombuffer(data, "<u8").astype(np.uint64).tobytes())


class Load(NamedTuple):
    """All that one picker has in flight at an endpoint, and its traffic there since it started.

    It is a state, not a change: the latest load is correct even if earlier ones were lost.
    """

    in_flight: Amount
    queued_tokens: Amount
    queued_uncached_tokens: Amount
    prefill_tokens: Amount
    ahead_s: Amount
    sent: Amount
    sent_s: Amount
    hidden_s: Amount
    read_s: Amount


NO_LOAD = Load(*[0.0] * len(Load._fields))
"""Nothing in flight, and nothing sent."""


class _Record(Struct, array_like=True, forbid_unknown_fields=True):
    kind: ClassVar[str]
    """Name in metrics."""
    soon: ClassVar[bool] = True
    """Whether the other pickers need it as urgently as they need decisions."""

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()

    def makes_sense(self) -> bool:
        """Return whether the values are plausible; their types are checked already."""
        return True


class Entered(_Record, tag="p"):
    """A prompt was sent to an endpoint.

    `entry` identifies it when it ends; the numbers of an origin ascend.
    """

    entry: Count
    address: Text
    total_bytes: Count
    hashes: Hashes

    def makes_sense(self) -> bool:
        """Return whether the hashes are complete, and as many as a prompt of this size has."""
        return len(self.hashes) == 8 * blocks_in(self.total_bytes)


class Ended(_Record, tag="s"):
    """An entry's request has ended, `ok` or not; `share` is its cached share, if reported."""

    soon: ClassVar[bool] = False

    entry: Count
    ok: bool
    share: Share | None


class StoredAt(_Record, tag="a"):
    """An endpoint stores an answer or a conversation."""

    object_id: Text
    address: Text
    session: Text
    tenant: Text = ""


class Turn(_Record, tag="t"):
    """The prompt of an entry is a turn of a session, whose context takes up cache space."""

    entry: Count
    address: Text
    context: Context

    def makes_sense(self) -> bool:
        """Return whether the context is plausible."""
        session, *amounts = self.context
        return len(session) <= MAX_TEXT_CHARS and all(0.0 <= it < LARGEST for it in amounts)


class Moved(_Record, tag="m"):
    """The context hook changed a text of a conversation, as `laar.context.memo.saved` describes."""

    soon: ClassVar[bool] = False

    key: Count
    changes: Annotated[bytes, Meta(max_length=_MAX_CHANGES_BYTES)]


class Heard(_Record, tag="h"):
    """Evidence about an endpoint's health."""

    address: Text
    word: Word

    def makes_sense(self) -> bool:
        """Return whether the amount is plausible."""
        return 0.0 <= self.word.amount < LARGEST


class Learned(_Record, tag="e"):
    """A sample for an endpoint's engine model, taken from one response."""

    soon: ClassVar[bool] = False

    address: Text
    sample: Sample

    def makes_sense(self) -> bool:
        """Return whether the sample is plausible."""
        first, features, *positive = self.sample
        return (
            len(features) == (6 if first else 1)
            and all(abs(feature) < LARGEST for feature in features)
            and all(0.0 < number < LARGEST for number in positive)
            and (first or self.sample.weight <= 1.0)
        )


class Left(_Record, tag="n"):
    """The last endpoint of a model name has left, for other pickers that never saw it."""

    soon: ClassVar[bool] = False

    name: Text
    model: Text
    pools: Annotated[tuple[Text, ...], Meta(max_length=_MAX_POOLS)]


class InDoubt(_Record, tag="b"):
    """A body may kill engines, as `laar.plugins.deadly` says; `addresses` are those it may harm."""

    digest: Count
    deaths: Count
    failures: Count
    addresses: Annotated[tuple[Text, ...], Meta(max_length=DEATHS)]


class Reported(_Record, tag="o"):
    """An outcome that a client reported."""

    outcome: Taken


class Repeated(_Record, tag="r"):
    """The outcome of a repeat that a client reported."""

    soon: ClassVar[bool] = False

    repeat: Repeat


class Judged(_Record, tag="j"):
    """An outcome reported to the wrong picker, for the picker that made the decision."""

    decision_id: Text
    correct: bool


class Leaving(_Record, tag="x"):
    """A picker is shutting down; its requests in flight no longer count."""


_OfRequests = Entered | Ended | StoredAt | Turn | Moved
Record = _OfRequests | Heard | Learned | Left | InDoubt | Reported | Repeated | Judged | Leaving
