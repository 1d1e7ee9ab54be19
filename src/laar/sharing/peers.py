"""The requests that other pickers have in flight, summed per endpoint into this picker's tables.

Only the picker itself writes its load at an endpoint, so the sum over pickers needs no agreement:
if records are lost, duplicated or late, the next one corrects that. Loads are leased: they stop
counting when their picker has sent nothing for `lease_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from laar.sharing.prefixes import Entries
from laar.sharing.records import NO_LOAD, Load
from laar.speeds.traffic import Elsewhere

if TYPE_CHECKING:
    from laar.sharing.sharing import Sharing

MAX_PEERS = 256
"""Maximum number of pickers remembered, present or gone; the one silent longest is evicted."""

MAX_LOADS = 20_000
"""Maximum number of endpoints with a load of another picker: as many as a batch may list."""

FORGET_S = 600.0
"""Seconds of silence after which a picker and its batch numbers are forgotten."""

TAG_CHARS = 6


def tag_of(origin: str) -> str:
    """Return the prefix of a picker's decision ids, which routes outcome reports to it."""
    size = TAG_CHARS // 2
    return blake2b(origin.encode(), digest_size=size, person=b"laar-decision").hexdigest()


@dataclass(slots=True, eq=False)
class Peer:
    """One other picker process; a restarted picker is a new peer.

    Attributes:
        tag: prefix of its decision ids.
        seq: number of its last batch.
        heard_at: when that batch was received.
        entries: its open entries; None if no prefixes are kept.
        loads: its load at each endpoint where it has one.
        synced: it has sent all its loads, so a missing load means zero.
        gone: its lease has expired, or it has shut down.
    """

    origin: str
    tag: str
    seq: int
    heard_at: float
    entries: Entries | None
    loads: dict[str, Load] = field(default_factory=dict)
    synced: bool = False
    gone: bool = False


class Peers:
    """All other pickers; the table and engines of `sharing` receive the sums."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._table = sharing.director.table
        self._engines = sharing.director.engines
        self._peers: dict[str, Peer] = {}
        self._version = self._table.version

    def __len__(self) -> int:
        """Return the number of pickers present."""
        return sum(not peer.gone for peer in self._peers.values())

    def known(self) -> Iterable[Peer]:
        """Return all pickers present, read-only."""
        return [peer for peer in self._peers.values() if not peer.gone]

    def find(self, origin: str, now: float) -> Peer:
        """Return the peer with this name, creating it if necessary."""
        peer = self._peers.get(origin)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                oldest = min(self._peers.values(), key=lambda peer: peer.heard_at)
                self.leave(oldest, now)
                del self._peers[oldest.origin]
            prefixes = self._sharing.prefixes
            entries = Entries(prefixes) if prefixes is not None else None
            peer = self._peers[origin] = Peer(origin, tag_of(origin), 0, now, entries)
        return peer

    def take(self, peer: Peer, loads: dict[str, Load], now: float, *, full: bool) -> None:
        """Apply a peer's loads; if `full`, loads that are not listed are zero."""
        if full:
            loads = {address: NO_LOAD for address in peer.loads if address not in loads} | loads
        for address, load in loads.items():
            before = peer.loads.get(address)
            if load == before and peer.synced:
                continue  # unchanged, like most loads of a full batch
            if load == NO_LOAD:
                peer.loads.pop(address, None)
            elif before is not None or len(peer.loads) < MAX_LOADS:
                peer.loads[address] = load
            else:
                self._sharing.refused["record"] += 1
                continue
            first = before is None and not peer.synced  # traffic before the first load is not new
            self._apply(address, now, load, load if first else before or NO_LOAD)
        peer.synced |= full

    def leave(self, peer: Peer, now: float) -> None:
        """Remove everything a peer has in flight."""
        peer.gone, peer.synced = True, False
        loads, peer.loads = peer.loads, {}
        for address in loads:
            self._apply(address, now)
        if peer.entries is not None:
            peer.entries.leave()

    def end_leases(self, now: float) -> int:
        """End expired leases, and apply loads that were received before their endpoint joined.

        Return the number of leases that expired.
        """
        ended = 0
        for peer in list(self._peers.values()):
            silent_s = now - peer.heard_at
            if not peer.gone and silent_s > self._sharing.settings.lease_s:
                ended += 1
                self.leave(peer, now)
            if silent_s > FORGET_S:
                del self._peers[peer.origin]
        if self._table.version != self._version:
            self._version = self._table.version
            for address in {address for peer in self._peers.values() for address in peer.loads}:
                self._apply(address, now)
        return ended

    def _apply(self, address: str, now: float, load: Load = NO_LOAD, since: Load = NO_LOAD) -> None:
        """Set the sums at an endpoint, and add a peer's traffic between `since` and `load`."""
        slot = self._table.slot_counted(address)
        if slot < 0:
            return
        there = [peer.loads.get(address, NO_LOAD) for peer in self._peers.values()]
        sums = there[0] if len(there) == 1 else Load(*map(sum, zip(*there, strict=True)))
        theirs = Elsewhere(
            ahead_s=sums.ahead_s,
            unseen_s=max(0.0, sums.sent_s - sums.read_s - sums.ahead_s),
            sent=_more(load.sent, since.sent),
            sent_s=_more(load.sent_s, since.sent_s),
            hidden_s=_more(load.hidden_s, since.hidden_s),
            read_s=_more(load.read_s, since.read_s),
        )
        self._engines.elsewhere(slot, now, theirs)
        self._table.count_elsewhere(slot, sums[:4])


def _more(new: float, old: float) -> float:
    """Return a counter's growth; if its value is lower than before, it restarted at zero."""
    return new - old if new >= old else new
