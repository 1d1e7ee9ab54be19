"""The interface of what carries batches between pickers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CarrierError(Exception):
    """The others cannot be reached now; the text gives the reason, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """The key and the snapshot that were found when the connection was opened.

    Args:
        key: secret of the hashes, which all use.
        snapshot: the others' records, for a picker that starts; None where there is none.
    """

    key: bytes
    snapshot: bytes | None


class Received(NamedTuple):
    """A batch of another picker, and its age in seconds."""

    data: bytes
    age_s: float


class Carrier(Protocol):
    """Carries batches in one order for all: what one reads before it writes, all read before.

    Every call but `close` raises `CarrierError` where the others cannot be reached.
    """

    keeps_file: bool
    """Whether snapshots go to `share.snapshot_file`: then the secret of the hashes is in them."""

    async def open(self, key: bytes, *, starting: bool) -> StartState:
        """Open the connection, and offer a key where the others have none.

        With `starting` the snapshot is fetched, and the batches since then are received.
        """
        ...

    def after(self, place: str) -> None:
        """Receive the batches after the place in a snapshot, and not those in it."""
        ...

    async def send(self, batches: Sequence[bytes]) -> None:
        """Send the batches; all of them have been sent when it returns."""
        ...

    def receive(self) -> AsyncIterator[list[Received]]:
        """Yield the batches of the others, in order, until the connection is closed."""
        ...

    @property
    def place(self) -> str:
        """The place in the order up to which batches were received."""
        ...

    async def is_my_turn(self) -> bool:
        """Return whether a snapshot is due, and this picker is to write it."""
        ...

    async def put_snapshot(self, data: bytes) -> None:
        """Keep it for pickers that start."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
