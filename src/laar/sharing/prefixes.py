"""Share the prefix index between pickers: each one also records the others' prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.blocks import Chain
from laar.prefix.index import Receipt
from laar.prefix.match import Context
from laar.sharing.records import Ended, Entered, Turn, from_bytes, to_bytes

if TYPE_CHECKING:
    from laar.sharing.sharing import Sharing

Ends = Callable[[float], None]

MAX_OPEN = 65_536
"""Maximum number of open entries per other picker; beyond that, the oldest is treated as ended."""


def key_id(key: bytes) -> str:
    """Return an id that distinguishes keys without revealing anything about them."""
    return blake2b(key, digest_size=4, person=b"laar-key-id").hexdigest()


class SharedPrefixes:
    """Reports new prefix entries to peers; implements `laar.prefix.beliefs.PrefixWatcher`."""

    def __init__(self, sharing: Sharing, beliefs: PrefixBeliefs) -> None:
        self.sharing = sharing
        self.beliefs = beliefs
        self.on_turn: Callable[[int, Chain, Context, float], Ends | None] | None = None
        """Called with an endpoint's slot, another picker's turn there, its context and the time;
        returns a function to call with the time when it ends."""
        self._table = sharing.director.table
        self._next = 1
        self._open: OrderedDict[Receipt, int] = OrderedDict()
        beliefs.watcher = self

    @property
    def oldest_open(self) -> int:
        """The oldest entry that has not ended; if all have ended, the next one."""
        return next(iter(self._open.values()), self._next)

    def entered(self, slot: int, chain: Chain, receipt: Receipt) -> None:
        """Send the hashes of a prompt that this picker added to its index."""
        if len(chain):
            entry, self._next = self._next, self._next + 1
            self._open[receipt] = entry
            address, hashes = self._table.spec(slot).key, to_bytes(chain.hashes)
            self.sharing.outbox.add(Entered(entry, address, chain.total_bytes, hashes))

    def ended(self, receipt: Receipt, *, ok: bool, share: float | None) -> None:
        """Tell the others how a prompt's request ended; a miss is evidence for all pickers."""
        entry = self._open.pop(receipt, None)
        if entry is not None:
            self.sharing.outbox.add(
                Ended(entry, ok=ok, share=None if share is None else round(share, 3))
            )

    def turn(self, slot: int, receipt: Receipt | None, context: Context) -> None:
        """Tell the others that a prompt is a turn of a session."""
        entry = self._open.get(receipt) if receipt is not None else None
        if entry is not None:
            self.sharing.outbox.add(Turn(entry, self._table.spec(slot).key, context))


class Entries:
    """The open entries of one other picker.

    Args:
        prefixes: the index in which they are entered.
    """

    def __init__(self, prefixes: SharedPrefixes) -> None:
        self._prefixes = prefixes
        self._open: OrderedDict[int, tuple[Receipt, Ends | None]] = OrderedDict()

    def enter(self, record: Entered, slot: int, now: float) -> None:
        """Enter a prompt, unless it is known already."""
        if record.entry in self._open:
            return
        beliefs = self._prefixes.beliefs
        chain: Any = Chain(from_bytes(record.hashes), record.total_bytes)
        self._open[record.entry] = beliefs.insert(slot, chain, now, heard=True), None
        if len(self._open) > MAX_OPEN:
            beliefs.settle(self._close(next(iter(self._open))), None)

    def turn(self, entry: int, slot: int, context: Context) -> None:
        """Begin a session's turn, which ends with its entry; ignore it if the entry is unknown."""
        on_turn = self._prefixes.on_turn
        receipt, ends = self._open.get(entry, (None, None))
        if on_turn is not None and receipt is not None and ends is None:
            now = self._prefixes.sharing.now
            self._open[entry] = receipt, on_turn(slot, receipt.chain, context, now)

    def end(self, record: Ended) -> None:
        """End an entry whose request ended; ignore an unknown entry."""
        if record.entry not in self._open:
            return
        receipt = self._close(record.entry)
        if record.ok:
            self._prefixes.beliefs.settle(receipt, record.share)
        else:
            self._prefixes.beliefs.retract(receipt)

    def end_before(self, oldest_open: int) -> None:
        """Retract all entries before `oldest_open`; they have ended, but how is unknown."""
        while self._open and (entry := next(iter(self._open))) < oldest_open:
            self._prefixes.beliefs.retract(self._close(entry))

    def leave(self) -> None:
        """Settle all entries of a picker that is gone; most likely its requests have continued."""
        while self._open:
            self._prefixes.beliefs.settle(self._close(next(iter(self._open))), None)

    def _close(self, entry: int) -> Receipt:
        receipt, end_turn = self._open.pop(entry)
        if end_turn is not None:
            end_turn(self._prefixes.sharing.now)
        return receipt
