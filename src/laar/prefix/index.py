"""The prefixes that each endpoint probably has cached.

There are two structures over the same chained hashes:

* One global set of *segments*, runs of blocks that the same endpoints hold: one walk over the
  prompt matches every endpoint (`laar.prefix.segments`).
* For each endpoint the *uses* of its cache, least recent first. A use owns the blocks that no later
  use covers; along any prompt these are a contiguous tail. Evicting the tail of the oldest use is
  exactly what vLLM does, to the block (free blocks are evicted in order of last use, the end of a
  prompt before its beginning), and a use never has to move when others branch off it.

A prompt is entered at the decision, so that a burst with one prefix stays together; the entry is
retracted if the request fails. Blocks become *proven* when a request that includes them has
succeeded. At any time, each block in the index is proven, or claimed by an open request.

When the engine reports fewer cached tokens than the index expected, the blocks of *that* prompt are
not the ones to forget: the engine has just computed them (removing them, as GORGO's optional
feedback does, sends the next turn of the conversation elsewhere). A single miss may have a
different reason, such as an adapter unknown here. But if a second prompt misses too, everything
last used no later than the older of the two is forgotten: an LRU cache has lost that as well. So an
endpoint of unknown capacity, or one whose restart was not seen, corrects itself.

The index is an estimate. Generated text is unknown until it returns in the next turn; engines pin
running requests and share blocks among adapters by their own rules. Memory is bounded by
``max_bytes``; beyond that the endpoint with the most text in the index loses its oldest use.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import ENDS, Chain
from laar.prefix.segments import Segments, give, shared_blocks, shared_from

MAX_BYTES = 128 << 20
"""Fits the caches of 100 endpoints with 500k tokens each: at least 2 million blocks of chats."""

DEFAULT_CAPACITY_BYTES = 2_000_000
"""Capacity assumed while unknown: 500k tokens of 4 bytes, which is common for 7-14B models."""

SEGMENT_BYTES = 300
USE_BYTES = 420
"""Python's overhead for one segment and one use, measured with tracemalloc."""

LEAST_MISS_BYTES = 4096
"""A missing prefix shorter than this is ignored: engines round down by up to 128 tokens."""

MISS_RATIO = 0.5
"""A report below this share of the estimate is a miss. Tokens per byte differ between the parts of
a prompt (English 4 bytes, Japanese or code under 3); a smaller gap may be due to conversion."""

_MOST = 0.75
"""Share of a prompt that its continuation repeats."""

_FILLING = 0.1
"""Share of a cache from which room in it is considered scarce. The session gate does not know the
contexts that came before, and lets others take their room."""

_MOST_RESTORED = 1024
"""Maximum number of uses remembered that one entry has evicted."""

_MOST_SPARED = 8
"""Maximum number of open requests whose blocks are protected during one eviction."""


@dataclass(slots=True, eq=False)
class _Use:
    """The blocks, from ``start`` on, that a request was the latest to use at an endpoint."""

    hashes: array[int]
    stamp: int
    claim: int  # stamp of the request's first use; the request may still be open
    at: float
    proven: int  # number of proven blocks, from the prompt's start
    witness: int  # stamp of the use that proved the deepest proven block
    start: int = 0
    whole: bool = True  # it ends where a prompt ends; else the end of the prompt was evicted


class _Evicted(NamedTuple):
    """What a use was before its blocks, except the first `keep`, were evicted."""

    use: _Use
    keep: int
    hashes: array[int]
    proven: int
    whole: bool


@dataclass(slots=True)
class _Cache:
    """The estimated contents of one endpoint's cache."""

    slot: int
    claims: dict[int, array[int]] = field(default_factory=dict)  # hashes of open requests, by stamp
    by_head: dict[int, _Use] = field(default_factory=dict)
    by_age: OrderedDict[int, _Use] = field(default_factory=OrderedDict)
    missed: array[int] | None = None  # the prompt of a miss that no second one has confirmed
    missed_stamp: int = 0  # stamp of the use that had proven that prompt
    changes: int = 0  # how often a use was made or cut


@dataclass(slots=True, eq=False)
class Receipt:
    """The record of an entry, to settle or retract it.

    Args:
        held: number of blocks that were probably cached at the decision, or about to be.
        proven: the proven ones of them.
        state: hash where a recurrent state was expected near the prompt's end; 0 if none.
        counted: the engine's counters at the decision (`laar.prefix.found.Counted`), if known.
    """

    chain: Chain
    held: int
    proven: int
    _cache: _Cache
    _stamp: int
    _witness: int  # stamp of the use that proved the deepest proven block
    state: int = 0
    counted: tuple[float, float] | None = None
    _evicted: Sequence[_Evicted] = ()
    _changes: int = 0

    @property
    def slot(self) -> int:
        """The slot whose cache the entry is for."""
        return self._cache.slot


class Kept(NamedTuple):
    """A use as returned by `PrefixIndex.dump`: its slot, depth in the prompt, blocks, and age."""

    slot: int
    start: int
    hashes: array[int]
    age_s: float


class Cut(NamedTuple):
    """The end of a prompt that has left a cache.

    Args:
        end: the last hash of the prompt.
        rest: the last hash of what is left of its own part there; 0 if nothing is.
        most: the hash at which a prompt has repeated most of it.
        for_room: whether it was evicted for lack of room.
    """

    slot: int
    end: int
    rest: int
    most: int
    for_room: bool


class PrefixIndex:
    """The estimate of every endpoint's prefix cache. Endpoints are given by slot, a small integer.

    Args:
        slots: number of slots; `resize` increases it.
        max_bytes: memory limit. Less than 1 MiB could not hold one long prompt.
    """

    def __init__(self, slots: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._segments = Segments()
        self._caches = [_Cache(slot) for slot in range(slots)]
        self.claims = [cache.claims for cache in self._caches]
        """The hashes of open requests, by slot; read only."""
        self.held_bytes = np.zeros(slots, np.int64)
        """Bytes of prompt that each slot probably has cached, shape ``(slots,)``; read only."""
        self.room_bytes = np.full(slots, DEFAULT_CAPACITY_BYTES, np.int64)
        """Bytes of prompt that each slot's engine can cache, shape ``(slots,)``; read only."""
        self.oldest_at = np.zeros(slots)
        """Last use of the prompt that a slot would evict first, shape ``(slots,)``; read only."""
        self._pulls: dict[tuple[int, int], float] = {}  # until when a slot's claims are pulled
        self._stamp = 0
        self.now = 0.0
        """Time of the latest entry; read only."""
        self._use_blocks = self.uses = 0
        self.forgotten_blocks = Counter(capacity=0, memory=0, disproved=0)
        """Blocks dropped since the start, by cause."""
        self.is_tight = False
        """Whether any cache was ever a tenth full, so that contexts may soon leave; read only."""
        self.on_cut: Callable[[Cut], object] = lambda _cut: None
        """Called when the end of a prompt leaves a cache."""

    def shares(self, chain: Chain) -> npt.NDArray[np.float64]:
        """Return the share of the prompt, in 0..1, that each slot probably holds."""
        holders, depths = self._segments.walk(chain.hashes)
        total, found = chain.total_bytes, np.zeros(len(self._caches))
        give(found, holders, depths, total)
        return found

    def insert(self, slot: int, chain: Chain, now: float = 0.0) -> Receipt:
        """Enter a prompt that is about to be sent to a slot.

        Every receipt must be passed once to `settle` or `retract`: open receipts are remembered.
        """
        cache, self.now = self._caches[slot], now
        held, proven, witness = self._use(cache, chain.hashes, settled=False)
        stamp = self._stamp
        evicted = self._fit(cache)
        cache.claims[stamp] = chain.hashes
        receipt = Receipt(chain, held, proven, cache, stamp, witness)
        receipt._evicted, receipt._changes = evicted, cache.changes
        return receipt

    def retract(self, receipt: Receipt) -> None:
        """Remove the entry of a request that failed.

        Blocks that a successful request has proven or another open request claims are kept. What
        it evicted is restored, unless the slot's cache has changed since.
        """
        cache, hashes = receipt._cache, receipt.chain.hashes
        if cache.claims.pop(receipt._stamp, None) is None:
            return  # the receipt is already settled, or the endpoint has been dropped
        is_latest = cache.changes == receipt._changes
        keep = max((shared_blocks(claim, hashes) for claim in cache.claims.values()), default=0)
        depth = 0
        while depth < len(hashes) and (use := cache.by_head.get(hashes[depth])) is not None:
            depth += shared_from(use.hashes, hashes, depth)
            if depth > max(keep, use.proven):
                self._cut(cache, use, max(keep, use.proven, use.start) - use.start)
        for evicted in reversed(receipt._evicted if is_latest else ()):
            if not self._undo(cache, evicted):
                break

    def settle(self, receipt: Receipt, cached_fraction: float | None = None) -> bool:
        """Record that a request succeeded: its prompt is cached now, and most recently used.

        Return False for a void receipt: the slot may belong to a different endpoint.

        Args:
            receipt: the receipt from `insert`.
            cached_fraction: ``cached_tokens / prompt_tokens`` as reported by the engine; None (or
                NaN) if not reported.
        """
        cache = receipt._cache
        if cache.claims.pop(receipt._stamp, None) is None:
            return False
        if cached_fraction is not None and (
            receipt.chain.bytes_of(receipt.proven) >= LEAST_MISS_BYTES
        ):
            self._weigh(cache, receipt, cached_fraction)
        latest = next(reversed(cache.by_age.values()), None)
        end = len(receipt.chain.hashes)
        if latest is not None and latest.stamp == receipt._stamp and len(latest.hashes) == end:
            # No other prompt was used meanwhile: claiming again would change only this.
            latest.proven, latest.witness = end, latest.stamp
        else:
            self._use(cache, receipt.chain.hashes, settled=True)
            self._fit(cache)
        return True

    def drop(self, slot: int) -> None:
        """Forget everything about a slot whose endpoint was removed.

        Its capacity becomes unknown. Takes a few microseconds per use.
        """
        cache = self._caches[slot]
        cache.claims.clear()  # open receipts become void: the slot may be reused
        self.clear(slot)
        self.room_bytes[slot] = DEFAULT_CAPACITY_BYTES

    def clear(self, slot: int) -> None:
        """Forget the slot's cached prompts: its cache was emptied, or the engine restarted.

        Claims of open requests are kept. An engine reports an emptied cache only together with the
        blocks of its next request, which is one of the open ones.
        """
        cache = self._caches[slot]
        for use in cache.by_age.values():  # the prompts in flight come back below
            use.whole &= use.claim not in cache.claims
        while cache.by_age:
            self._cut(cache, _oldest(cache), 0)
        cache.missed = None
        for stamp, hashes in cache.claims.items():
            self._use(cache, hashes, settled=False, claim=stamp)
            self._fit(cache)

    def claimed(self, slot: int, chain: Chain, *, pulled: bool = True) -> float:
        """Return the share of the prompt, in 0..1, shared with open requests at the slot.

        Without those `pulled`, if so given.
        """
        shared = (
            shared_blocks(claim, chain.hashes)
            for stamp, claim in self._caches[slot].claims.items()
            if pulled or (slot, stamp) not in self._pulls
        )
        return chain.fraction(max(shared, default=0))

    def pulled(self, receipt: Receipt, until: float) -> None:
        """Record that a prompt is pulled from another engine, and cached only at a later time."""
        self._pulls[receipt.slot, receipt._stamp] = until

    def pulling(self, now: float) -> set[int]:
        """Return the slots to which prompts are being pulled."""
        self._pulls = {of: until for of, until in self._pulls.items() if until > now}
        return {slot for slot, _ in self._pulls}

    def proven(self, slot: int, chain: Chain) -> float:
        """Return the share of the prompt, in 0..1, that the slot has certainly computed."""
        cache, hashes, depth, proven = self._caches[slot], chain.hashes, 0, 0
        while depth < len(hashes) and (use := cache.by_head.get(hashes[depth])) is not None:
            depth += shared_from(use.hashes, hashes, depth)
            proven = max(proven, min(use.proven, depth))
        return chain.fraction(proven)

    def set_capacity(self, slot: int, capacity_bytes: int) -> None:
        """Set how much prompt text the slot's engine can cache; 0 if it caches no prefixes.

        From vLLM's ``cache_config_info``: ``kv_cache_size_tokens`` (or ``num_gpu_blocks *
        block_size``) times the bytes per token seen at that slot.
        """
        self.room_bytes[slot] = capacity_bytes
        self._fit(self._caches[slot])

    def find_continued(self, slot: int, chain: Chain) -> None:
        """Find the prompt cached at a slot that this one continues; set the chain's record of it.

        A prompt continues another if it goes on after most of it: agents often replace the end.
        Prompts in flight are left out, as their answers are unknown.
        """
        cache, hashes, end = self._caches[slot], chain.hashes, len(chain)
        depth = 0
        while depth < end and (use := cache.by_head.get(hashes[depth])) is not None:
            depth += shared_from(use.hashes, hashes, depth)
            is_most = ENDS[depth] >= _MOST * ENDS[use.start + len(use.hashes)]
            ended = use.whole and use.claim not in cache.claims
            continues = is_most and depth < end and ended
            chain.continues, chain.own_from = (use.hashes[-1], use.start) if continues else (0, end)
            chain.held = depth

    def missing_bytes(self, slot: int, fresh_bytes: float) -> float:
        """Return how many bytes the slot would evict for so much new text; 0 or less if none."""
        return float(self.held_bytes[slot]) + fresh_bytes - float(self.room_bytes[slot])

    def oldest(self, slot: int, chain: Chain) -> Iterator[tuple[int, int]]:
        """Yield what a slot evicts for a prompt of which it holds no more: the next one first.

        Each item is the last hash of some prompt, and the bytes of its end that no later prompt
        shares. What the prompt itself shares is left out, since it will be the latest used.
        """
        hashes, count = chain.hashes, len(chain)
        for use in self._caches[slot].by_age.values():
            start = use.start
            if start >= count or hashes[start] != use.hashes[0]:
                yield use.hashes[-1], ENDS[start + len(use.hashes)] - ENDS[start]

    def dump(self, max_blocks: int, now: float) -> Callable[[], list[Kept]]:
        """Return a function that returns the latest uses, for any thread.

        They are those of all slots, the oldest first, up to `max_blocks` in total. Claims are
        included, as most requests succeed. The arrays are the index's own: do not modify them.
        """
        caches = [cache for cache in self._caches if cache.by_age]

        def latest() -> list[Kept]:
            # Copying one cache's uses is a single step for other threads.
            by_age = (zip(reversed(list(c.by_age.values())), repeat(c.slot)) for c in caches)
            kept, left = list[Kept](), max_blocks
            for use, slot in merge(*by_age, key=lambda entry: entry[0].stamp, reverse=True):
                start, hashes = use.start, use.hashes
                left -= len(hashes)
                if left < 0:
                    break
                kept.append(Kept(slot, start, hashes, now - use.at))
            kept.reverse()
            return kept

        return latest

    def restore(self, uses: Iterable[Kept], now: float) -> int:
        """Restore a result of `dump` into an empty index; return the number of uses.

        Inconsistent parts are skipped: they may come from a different version, or a file.
        """
        if self._segments.by_first:
            return 0
        # By depth: a use is entered after the use of its slot that it branches off from.
        kept = [
            (at, use)
            for at, use in sorted(enumerate(uses), key=lambda entry: entry[1].start)
            if self._enter(use)
        ]
        for _, use in sorted(kept):
            self._take_up(use, now)
        for cache in self._caches:
            self._fit(cache)
        return len(kept)

    def _enter(self, use: Kept) -> bool:
        """Enter a use's segments; return False if it is invalid or the slot holds part of it."""
        end = len(use.hashes)
        if not (0 <= use.slot < len(self._caches) and end > 0 and use.start >= 0):
            return False
        bit = 1 << use.slot
        sets, _ = self._segments.walk(use.hashes)
        if use.start + end >= len(ENDS) or any(holders & bit for holders in sets):
            return False
        self._segments.tag(bit, use.hashes, 0, 0)
        return True

    def _take_up(self, kept: Kept, now: float) -> None:
        self._stamp += 1
        end, cache = len(kept.hashes), self._caches[kept.slot]
        stamp, start = self._stamp, kept.start
        use = _Use(kept.hashes, stamp, stamp, now - kept.age_s, start + end, stamp, start)
        cache.by_head[kept.hashes[0]] = cache.by_age[use.stamp] = use
        self.uses += 1
        self._use_blocks += end
        self.held_bytes[kept.slot] += ENDS[kept.start + end] - ENDS[kept.start]

    def resize(self, slots: int) -> None:
        """Grow to `slots` slots; a smaller number has no effect."""
        more = (0, max(0, slots - len(self._caches)))
        self._caches += [_Cache(slot) for slot in range(len(self._caches), slots)]
        self.claims = [cache.claims for cache in self._caches]
        self.held_bytes = np.pad(self.held_bytes, more)
        self.room_bytes = np.pad(self.room_bytes, more, constant_values=DEFAULT_CAPACITY_BYTES)
        self.oldest_at = np.pad(self.oldest_at, more)

    def _weigh(self, cache: _Cache, receipt: Receipt, cached_fraction: float) -> None:
        """Record the share of a proven prompt that the engine had cached."""
        hashes, witness, before = receipt.chain.hashes, receipt._witness, cache.missed
        if not cached_fraction < MISS_RATIO * receipt.chain.fraction(receipt.proven):
            if witness <= cache.missed_stamp:
                cache.missed = None  # older blocks are still cached, so this prompt was not evicted
            return
        if before is not None and shared_blocks(before, hashes) < min(len(before), receipt.proven):
            until = min(witness, cache.missed_stamp)
            while cache.by_age and (oldest := _oldest(cache)).stamp <= until:
                self.forgotten_blocks["disproved"] += self._cut(cache, oldest, 0)
            witness = max(witness, cache.missed_stamp)
        cache.missed, cache.missed_stamp = hashes[: receipt.proven], witness

    def _use(
        self, cache: _Cache, hashes: array[int], *, settled: bool, claim: int = 0
    ) -> tuple[int, int, int]:
        """Make the prompt the slot's latest use.

        Return the blocks held before, those of them proven, and by which use.

        Does not evict yet. `claim` is the stamp of the open request it is for, if known.
        """
        self._stamp += 1
        cache.changes += 1
        held = proven = witness = edge = 0
        end = len(hashes)
        if not end:
            return 0, 0, 0
        while held < end and (use := cache.by_head.pop(hashes[held], None)) is not None:
            shared = shared_from(use.hashes, hashes, held)
            if use.proven > held:
                proven, witness = min(use.proven, held + shared), use.witness
            held += shared
            self._use_blocks -= shared
            if shared < len(use.hashes):  # the older use keeps its own branch
                use.hashes = use.hashes[shared:]
                use.start = held
                cache.by_head[use.hashes[0]] = use
            else:
                if edge == held - shared:  # no use branched off, which may need a split
                    edge = held  # a use ends where a segment ends
                del cache.by_age[use.stamp]
                self.uses -= 1
        evidence = (end, self._stamp) if settled else (proven, witness)
        use = _Use(hashes, self._stamp, claim or self._stamp, self.now, *evidence)
        cache.by_head[hashes[0]] = cache.by_age[use.stamp] = use
        self.uses += 1
        self._use_blocks += end
        self._segments.tag(1 << cache.slot, hashes, held, edge)
        self.held_bytes[cache.slot] += ENDS[end] - ENDS[held]
        return held, proven, witness

    def _cut(self, cache: _Cache, use: _Use, keep: int, *, for_room: bool = False) -> int:
        """Truncate a use to its first `keep` blocks; return the number removed."""
        hashes, end = use.hashes, len(use.hashes)
        cache.changes += 1
        if use.whole:
            rest = hashes[keep - 1] if keep else 0
            most = bisect_left(ENDS, _MOST * ENDS[use.start + end]) - 1 - use.start
            self.on_cut(Cut(cache.slot, hashes[-1], rest, hashes[max(0, most)], for_room))
            use.whole = not for_room
        self._segments.untag(1 << cache.slot, hashes, keep)
        start = use.start
        self.held_bytes[cache.slot] -= ENDS[start + end] - ENDS[start + keep]
        self._use_blocks -= end - keep
        if keep:
            use.hashes = hashes[:keep]
            use.proven = min(use.proven, start + keep)
        else:
            del cache.by_head[hashes[0]], cache.by_age[use.stamp]
            self.uses -= 1
        return end - keep

    def _undo(self, cache: _Cache, evicted: _Evicted) -> bool:
        """Restore proven blocks that have just been evicted; return False if they don't fit."""
        use, keep, hashes, proven, whole = evicted
        end, start = len(hashes), use.start
        restored_bytes = ENDS[start + end] - ENDS[start + keep]
        if self.missing_bytes(cache.slot, restored_bytes) > 0.0:
            return False
        use.hashes, use.proven, use.whole = hashes, proven, whole
        cache.by_head[hashes[0]] = cache.by_age[use.stamp] = use
        cache.by_age.move_to_end(use.stamp, last=False)
        self._segments.tag(1 << cache.slot, hashes, keep, keep)
        self.uses += not keep
        self._use_blocks += end - keep
        self.held_bytes[cache.slot] += restored_bytes
        return True

    def _fit(self, cache: _Cache) -> list[_Evicted]:
        """Evict down to the slot's exact capacity, then to the index's memory limit.

        Return what was evicted for lack of capacity, in order. Blocks claimed by open requests are
        spared: an engine keeps them until the requests end, longer than blocks last used by a
        request that has ended.
        """
        evicted: list[_Evicted] = []
        spared, room_bytes = 0, int(self.room_bytes[cache.slot])
        if self.held_bytes.item(cache.slot) > _FILLING * room_bytes:
            self.is_tight = True
        while (excess := int(self.held_bytes[cache.slot]) - room_bytes) > 0:
            use = _oldest(cache)
            claimed = cache.claims.get(use.claim)
            if claimed is not None and spared < _MOST_SPARED:
                spared += 1
                held = claimed[: use.start + len(use.hashes)]
                self._use(cache, held, settled=False, claim=use.claim)
                continue
            limit_bytes = ENDS[use.start + len(use.hashes)] - excess
            keep = max(bisect_right(ENDS, limit_bytes) - 1 - use.start, 0)
            if use.proven >= use.start + len(use.hashes) and len(evicted) < _MOST_RESTORED:
                evicted.append(_Evicted(use, keep, use.hashes, use.proven, use.whole))
            self.forgotten_blocks["capacity"] += self._cut(cache, use, keep, for_room=True)
        while self.size_bytes > self._max_bytes:
            largest = self._caches[int(self.held_bytes.argmax())]
            self.forgotten_blocks["memory"] += self._cut(largest, _oldest(largest), 0)
        oldest = next(iter(cache.by_age.values()), None)
        self.oldest_at[cache.slot] = self.now if oldest is None else oldest.at
        return evicted

    @property
    def size_bytes(self) -> int:
        """Estimated memory use of the index."""
        segment_bytes = SEGMENT_BYTES + (len(self._caches) >> 3)  # one bit per slot
        return (
            len(self._segments.by_first) * segment_bytes
            + self.uses * USE_BYTES
            + (self._segments.blocks + self._use_blocks) * 8
        )


def _oldest(cache: _Cache) -> _Use:
    return next(iter(cache.by_age.values()))
