"""KV blocks, reference-counted and keyed by content; the least recently used is evicted first.

As in vLLM, the blocks of a finished sequence can be found until their memory is needed. The last
block is released first, so that the tail of a prefix is evicted before its head. A block can be
found as soon as the iteration that fills it is scheduled.

There are two simplifications. Blocks without a hash are only counted, so they are reused before
anything cached is evicted. If two sequences compute the same block at the same time, the second
copy's memory is released immediately, where vLLM keeps both until they are freed. At most
`num_blocks` hashes are known at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from laar_lab.sim.engine.interface import KvEvent


class BlockPool:
    """The KV memory of one engine.

    Args:
        num_blocks: total number of blocks.
        record: record events for `drain`.
    """

    __slots__ = ("_events", "_idle", "_record", "_refs", "_unused", "num_blocks")

    def __init__(self, num_blocks: int, *, record: bool = False) -> None:
        self.num_blocks = num_blocks
        self._unused = num_blocks
        self._refs: dict[int, int] = {}  # hash -> users; with 0 users it is also in _idle
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._record = record
        self._events: list[KvEvent] = []

    @property
    def free(self) -> int:
        """Number of blocks that can be taken, including cached ones without users."""
        return self._unused + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the blocks that are in use, from 0 to 1."""
        return 1.0 - self.free / self.num_blocks

    def match(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """Return how many leading blocks are cached, at most `limit`, and how many of them idle."""
        refs = self._refs
        found = idle = 0
        for key in hashes if limit >= len(hashes) else hashes[:limit]:
            users = refs.get(key)
            if users is None:
                break
            found += 1
            idle += not users
        return found, idle

    def share(self, hashes: Sequence[int]) -> None:
        """Add a reference to each of these blocks, all of which must be cached."""
        refs, idle = self._refs, self._idle
        for key in hashes:
            users = refs[key]
            if not users:
                del idle[key]
            refs[key] = users + 1

    def take(self, count: int) -> None:
        """Take `count` blocks without a hash; at least as many must be free."""
        self._unused -= count
        if self._unused >= 0:
            return
        removed = []
        while self._unused < 0:
            key, _ = self._idle.popitem(last=False)
            del self._refs[key]
            removed.append(key)
            self._unused += 1
        if self._record:
            self._events.append(KvEvent("removed", tuple(removed)))

    def publish(self, hashes: Sequence[int], parent: int | None) -> None:
        """Assign these hashes to as many of the caller's unhashed blocks, which are now full."""
        refs, fresh = self._refs, []
        for key in hashes:
            users = refs.get(key)
            if users is None:
                refs[key] = 1
                fresh.append(key)
            else:  # share the copy that another sequence computed meanwhile
                if not users:
                    del self._idle[key]
                refs[key] = users + 1
                self._unused += 1
                self._stored(fresh, parent)
                fresh, parent = [], key
        self._stored(fresh, parent)

    def release(self, hashes: Sequence[int], nameless: int) -> None:
        """Release a sequence's blocks: those of `hashes`, first to last, and `nameless` others."""
        self._unused += nameless
        refs, idle = self._refs, self._idle
        for key in reversed(hashes):
            users = refs[key] - 1
            refs[key] = users
            if not users:
                idle[key] = None

    def clear(self) -> None:
        """Drop all blocks, even those in use."""
        self._unused = self.num_blocks
        self._refs.clear()
        self._idle.clear()
        self._events = [KvEvent("cleared")] if self._record else []

    def drain(self) -> tuple[KvEvent, ...]:
        """Return and clear the recorded events; there are only a handful per iteration."""
        if not self._events:
            return ()
        events, self._events = tuple(self._events), []
        return events

    def _stored(self, fresh: list[int], parent: int | None) -> None:
        if fresh and self._record:
            self._events.append(KvEvent("stored", tuple(fresh), parent))
