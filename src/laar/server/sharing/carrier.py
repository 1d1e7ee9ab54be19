"""What the sharing of a running picker asks of a way to the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Away", "Begun", "Carrier", "Received"]


class Away(Exception):  # noqa: N818 - the state it is in
    """The others cannot be reached now; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What there is when the way is open.

    Args:
        key: secret of the hashes, which all use.
        snapshot: what the others know, for one that starts; None where there is none.
    """

    key: bytes
    snapshot: bytes | None


class Received(NamedTuple):
    """A batch of another picker, and how long it lay somewhere."""

    data: bytes
    age_s: float


class Carrier(Protocol):
    """Carries batches in one order for all: what one has read before it writes, all read before.

    Every call but `close` raises `Away` where the others cannot be reached.
    """

    async def open(self, key: bytes, *, starting: bool) -> Begun:
        """Opens the way, and offers a key where the others have none.

        With `starting` the snapshot is fetched, and what came since is received.
        """
        ...

    def after(self, place: str) -> None:
        """Receives what came after the place in a snapshot, and not what is in it."""
        ...

    async def send(self, batches: Sequence[bytes]) -> None:
        """Sends; all of them have been sent when it returns."""
        ...

    def receive(self) -> AsyncIterator[list[Received]]:
        """What comes in, in order, until the way is closed."""
        ...

    @property
    def place(self) -> str:
        """Up to where was received."""
        ...

    async def is_my_turn(self) -> bool:
        """Whether a snapshot is due, and this picker is to write it."""
        ...

    async def put_snapshot(self, data: bytes) -> None:
        """Keeps it for pickers that start."""
        ...

    async def close(self) -> None:
        """Closes the way."""
        ...
