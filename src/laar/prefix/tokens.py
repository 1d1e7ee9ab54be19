"""The blocks that each endpoint holds, according to the engines' KV events.

Engines name a block by a hash of their own: vLLM's depends on its algorithm, seed and release, and
SGLang's is different. So no engine's scheme is imitated here. An event carries the token ids of its
blocks; they are hashed again, chained as in the engine, with the adapter and the cache salt. The
engine's own names are used only to find a block's parent, and the block that was removed.

A prompt is matched in two steps. The text index's chain (`laar.prefix.blocks`) identifies a text;
texts whose blocks have been learned (`TokenBlocks.learn`) map each offset to a block. Each
endpoint's events tell how many of these blocks it holds. Blocks are learned once a request has
ended, so a prompt is known by its earlier turns: all that a cache can hold, except the last answer.

The token at which a prompt diverges from all known prompts is interpolated; a second prompt that
diverges there makes it exact, since the token ids of both are known then.

What is considered cached, by endpoint:

* If no event was missed since the cache was empty: exactly the blocks in the events.
* Otherwise: at least the blocks in the events.
* Always: the prompts of requests in flight, and of those whose events are late but will come.

A prompt's blocks are learned from the events themselves if they name the session of a request. Each
request is sent to its engine with a session that clients do not see (`TokenBlocks.expect`); the
blocks reported under it belong to the prompt, even if that is not text, and to its answer.

Does no I/O and reads no clock. Memory is bounded by `MAX_BLOCKS` and `MAX_TEXTS`.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from laar.prefix.blocks import Chain
from laar.prefix.segments import shared_blocks
from laar.prefix.states import MAX_STATES
from laar.prefix.tiers import worth

TokenIds = npt.NDArray[np.uint32]

MAX_BLOCKS = 1_000_000
"""Maximum number of blocks over all endpoints, about 290 MB: 32 caches of 500k tokens in blocks of
16. Beyond that, the endpoint that holds the most falls back to the text index until its cache is
empty."""

MAX_TEXTS = 400_000
"""Maximum number of text blocks with known engine blocks, about 60 MB: 750 conversations of 400 kB.
A text with over `_BLOCKS_EACH` engine blocks per text block counts as longer, up to 200 MB."""

MAX_EXPECTED = 8192
"""Maximum number of requests for which blocks are expected; each takes 3 kB at 6,000 tokens."""

MAX_EXPECTED_BLOCKS = 4_000_000
"""Maximum number of blocks of all these requests (32 MB); the oldest are forgotten first."""

_MORE_TOKENS = 65_536  # for images: over two tokens per byte of the prompt
_BLOCKS_EACH = 64
_MAX_LATE = 8  # answered requests of an endpoint whose events have not arrived yet
_MAX_ANCHORS = 64  # offsets per text with a known token; a conversation has one per turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks that entered a cache, in prompt order.

    Args:
        hashes: the engine's names of the blocks.
        parent: parent of the first block; None at the beginning of a prompt.
        ids: token ids of all blocks together; empty if the engine does not publish them.
        block_size: tokens per block; 0 if unknown.
        adapter: name of the LoRA adapter; empty if there is none.
        extra: for each block, other inputs to its hash, as text; empty if there are none.
        tier: memory of these copies (`laar.prefix.tiers`); slower tiers have only `hashes`.
        session: session of the request that stored them; empty if the engine does not report it.
        is_state: whether these are recurrent states after the blocks, which have only `hashes`.
    """

    hashes: Sequence[int | bytes]
    parent: int | bytes | None = None
    ids: TokenIds = field(default_factory=lambda: np.empty(0, np.uint32))
    block_size: int = 0
    adapter: str = ""
    extra: Sequence[str] = ()
    tier: int = 0
    session: str = ""
    is_state: bool = False


def root(adapter: str, extra: str) -> int:
    """Return the seed of a prompt's first block."""
    return xxh3_64_intdigest(f"{adapter}\0{extra}".encode("utf-8", "surrogatepass"))


def hash_blocks(ids: TokenIds, size: int, seed: int, extra: Sequence[str] = ()) -> array[int]:
    """Return the chained hashes of the full blocks; `extra` holds other inputs to each hash."""
    raw = memoryview(ids.astype("<u4").tobytes())
    stride, hashes = 4 * size, array("Q")
    for start in range(0, len(raw) - stride + 1, stride):
        if extra and (more := extra[start // stride]):
            seed = xxh3_64_intdigest(more.encode("utf-8", "surrogatepass"), seed)
        seed = xxh3_64_intdigest(raw[start : start + stride], seed)
        hashes.append(seed)
    return hashes


@dataclass(slots=True, eq=False)
class _Text:
    """A prompt whose blocks are known, with offsets in its text and the token at each."""

    chain: Chain
    tokens: int
    size: int
    blocks: array[int]
    anchors: list[tuple[int, float]]
    weight: int  # its size, in blocks of text

    def tokens_at(self, place_bytes: int) -> float:
        """Return the number of tokens before an offset in the text, exact at its anchors."""
        after = bisect_right(self.anchors, (place_bytes, math.inf))
        start_bytes, start = self.anchors[after - 1]
        if after == len(self.anchors) or place_bytes <= start_bytes:
            return start
        end_bytes, end = self.anchors[after]
        return start + (end - start) * (place_bytes - start_bytes) / (end_bytes - start_bytes)


@dataclass(slots=True)
class _Held:
    """The contents of one endpoint's cache, according to its events."""

    model: str
    size: int = 0
    exact: bool = False  # no event was missed since it was empty
    left_out: bool = False  # it had too many blocks, and is ignored until empty
    since_s: float = math.nan  # when it was last empty, by its engine's clock
    own: dict[int | bytes, int] = field(default_factory=dict)  # blocks by the engine's name
    states: set[int | bytes] | None = None  # blocks with a state; None if it keeps none
    resumed_at: set[int] = field(default_factory=set)  # those of `own`
    copies: dict[int | bytes, int] = field(default_factory=dict)  # extra copies of the same block
    doubtful: set[int] = field(default_factory=set)  # removed once, and still held
    twins: dict[int, int] = field(default_factory=dict)  # more names of blocks that seem the same
    slower: dict[int | bytes, int] = field(default_factory=dict)  # tiers by engine name, a bit each
    behind: dict[int, int] = field(default_factory=dict)  # the fastest, of blocks not on the device
    late: deque[tuple[str, Chain]] = field(default_factory=lambda: deque(maxlen=_MAX_LATE))

    def emptied(self, *, exact: bool = False, since_s: float = math.nan) -> _Held:
        """Return the contents of the same engine's cache when nothing is known to be in it."""
        states = None if self.states is None else set[int | bytes]()
        return _Held(self.model, self.size, exact=exact, since_s=since_s, states=states)

    def add_states(self, names: Sequence[int | bytes]) -> None:
        """Add states after these blocks, whether the blocks are known or not yet.

        If there are more than any engine has, start anew.
        """
        if self.states is None or len(self.states) > MAX_STATES:
            self.states, self.resumed_at = set(), set()
        self.states.update(names)
        self.resumed_at.update(self.own[name] for name in names if name in self.own)


@dataclass(slots=True)
class _Expected:
    """A request whose blocks will come in the endpoint's events, followed by its answer's."""

    slot: int
    chain: Chain
    tokens: float
    blocks: array[int] = field(default_factory=lambda: array("Q"))
    is_answered: bool = False


class TokenBlocks:
    """Index of the engines' KV blocks, by endpoint and by text."""

    def __init__(self) -> None:
        self._slots: dict[int, _Held] = {}
        self._holders: dict[int, int] = {}
        self._parents: dict[int, int] = {}  # the parent of a prompt's first block is 0
        self._known: dict[str, dict[int, _Text]] = {}  # texts by model, then by block
        self._order: OrderedDict[_Text, str] = OrderedDict()
        self._expected: OrderedDict[str, _Expected] = OrderedDict()
        self._expected_blocks = 0
        self.blocks = self.texts = 0

    # -- events --------------------------------------------------------------------------------

    def stored(self, slot: int, model: str, event: Stored) -> None:
        """Record blocks that entered a cache, if their token ids and their parent are known."""
        held = self._of(slot, model)
        if event.is_state:
            if not event.tier:
                held.add_states(event.hashes)
            return
        if event.tier:
            for name in held.own.keys() & set(event.hashes):
                tiers = held.slower.get(name, 0)
                if not tiers >> event.tier & 1:
                    held.slower[name] = tiers | 1 << event.tier
                    held.copies[name] = held.copies.get(name, 0) + 1
            return
        size, count = event.block_size, len(event.hashes)
        if held.left_out or not size or len(event.ids) != size * count:
            return
        held.size = size
        if event.parent is None:
            seed: int | None = root(event.adapter, event.extra[0] if event.extra else "")
            extra = ("", *event.extra[1:])
        else:
            seed, extra = held.own.get(event.parent), tuple(event.extra)
        if seed is None:
            return
        bit = 1 << slot
        own = hash_blocks(event.ids, size, seed, extra if any(extra) else ())
        parent = 0 if event.parent is None else seed
        parents = (parent, *own[:-1])
        for name, hash_, before in zip(event.hashes, own, parents, strict=True):
            if self._holders.get(held.own.get(name, 0), 0) & bit:
                held.copies[name] = held.copies.get(name, 0) + 1
                held.behind.pop(hash_, None)
                continue
            holders = self._holders.get(hash_, 0)
            held.own[name] = hash_
            self.blocks += 1
            if holders & bit:  # its name depends on more, such as the tokens that follow
                held.twins[hash_] = held.twins.get(hash_, 0) + 1
                continue
            if held.states is not None and name in held.states:
                held.resumed_at.add(hash_)
            self._holders[hash_] = holders | bit
            self._parents[hash_] = before
        if event.session in self._expected:
            while held.late and held.late.popleft()[0] != event.session:
                pass  # events come in order, so an earlier request stored nothing
            self._take_expected(event.session, held, parent, own)
        if self.blocks > MAX_BLOCKS:
            fullest = max(self._slots, key=lambda slot: len(self._slots[slot].own))
            self.lost(fullest)
            self._slots[fullest].left_out = True

    def removed(
        self, slot: int, hashes: Sequence[int | bytes], tier: int = 0, *, is_state: bool = False
    ) -> None:
        """Remove blocks, or the states after them, evicted from a cache or slower memory."""
        held = self._slots.get(slot)
        if held is None:
            return
        if is_state:
            if not tier and held.states is not None:
                held.states.difference_update(hashes)
                held.resumed_at.difference_update(held.own.get(name, 0) for name in hashes)
            return
        held.late.clear()  # a prompt that was cached has no events to come, and may be evicted
        for name in hashes:
            if tier:
                if not held.slower.get(name, 0) >> tier & 1:
                    continue
                held.slower[name] ^= 1 << tier
            copies = held.copies.get(name, 0)
            if copies:
                held.doubtful.add(held.own.get(name, 0))
            if copies > 1:
                held.copies[name] = copies - 1
            elif copies:
                del held.copies[name]
            else:
                held.slower.pop(name, None)
                hash_ = held.own.pop(name, 0)
                held.doubtful.discard(hash_)
                if twins := held.twins.pop(hash_, 0):
                    held.twins |= {hash_: twins - 1} if twins > 1 else {}
                    self.blocks -= 1
                elif hash_:
                    held.resumed_at.discard(hash_)
                    self._forget(slot, hash_)
                continue
            if tiers := held.slower.get(name, 0):
                on_device = copies > tiers.bit_count()
                if not on_device:
                    held.behind[held.own[name]] = (tiers & -tiers).bit_length() - 1

    def emptied(self, slot: int, model: str, at_s: float = math.nan) -> None:
        """Record that a cache has been empty since `at_s`, by its engine's clock."""
        self.lost(slot)
        before = self._slots.get(slot)
        self._slots[slot] = (before or _Held(model)).emptied(exact=True, since_s=at_s)
        self._slots[slot].model = model

    def restarted(self, slot: int, started_s: float = math.nan) -> bool:
        """Handle an engine's restart; return whether its events have shown it already.

        They have if they emptied the cache after `started_s`, by the engine's clock.
        """
        held = self._slots.get(slot)
        if held is not None and held.since_s >= started_s:
            return True
        self.lost(slot)
        return False

    def lost(self, slot: int) -> None:
        """Forget a cache because events were lost."""
        held = self._slots.get(slot)
        if held is None:
            return
        for hash_ in set(held.own.values()):
            self._forget(slot, hash_)
        self.blocks -= sum(held.twins.values())
        self._slots[slot] = held.emptied()

    def keeps_states(self, slot: int) -> bool:
        """Return whether a slot's engine resumes prompts only where it kept a state."""
        held = self._slots.get(slot)
        return held is not None and held.states is not None

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self.lost(slot)
        self._slots.pop(slot, None)

    def _of(self, slot: int, model: str) -> _Held:
        held = self._slots.get(slot)
        if held is None or held.model != model:
            self.lost(slot)
            held = self._slots[slot] = _Held(model)
        return held

    def missed(self, slot: int, chain: Chain, found_tokens: float) -> None:
        """Forget blocks of a prompt that an engine did not find, if they were removed before.

        Some engines report a block stored more often than removed. It is kept if it was stored more
        than once, as the engine may have computed it just now.
        """
        held = self._slots.get(slot)
        place = None if held is None else self._place(held.model, chain)
        if held is None or place is None:
            return
        size, tokens = place[1].size, place[1].tokens_at(place[0])
        blocks = set(place[1].blocks[int(found_tokens) // size : int(tokens) // size])
        blocks &= held.doubtful
        for name in [name for name in held.copies if held.own.get(name) in blocks]:
            del held.copies[name]
            held.slower.pop(name, None)
            blocks.discard(held.own[name])
        held.doubtful -= blocks
        for hash_ in blocks - held.twins.keys():
            self._forget(slot, hash_)

    def _forget(self, slot: int, hash_: int) -> None:
        if not self._holders.get(hash_, 0) >> slot & 1:
            return
        self.blocks -= 1
        self._slots[slot].behind.pop(hash_, None)
        left = self._holders[hash_] & ~(1 << slot)
        if left:
            self._holders[hash_] = left
        else:
            del self._holders[hash_], self._parents[hash_]

    # -- requests by their sessions --------------------------------------------------------------

    def expect(self, session: str, slot: int, chain: Chain, tokens: float) -> str:
        """Expect a request's KV events by its session; return it, or "" if the slot has no events.

        Args:
            session: the session that is sent to the engine with the request.
            slot: the slot that it is sent to.
            chain: its prompt.
            tokens: estimated length of the prompt.
        """
        held = self._slots.get(slot)
        if held is None or not held.size or held.left_out or not len(chain):
            return ""
        if len(self._expected) >= MAX_EXPECTED:
            self._forget_oldest()
        self._expected[session] = _Expected(slot, chain, tokens)
        return session

    def answered(self, session: str, tokens: int) -> None:
        """Learn the blocks of an expected prompt whose request has ended.

        Args:
            session: as in `expect`.
            tokens: the prompt's length as the engine reported it; 0 if not reported.
        """
        expected = self._expected.get(session)
        if expected is None or (held := self._slots.get(expected.slot)) is None:
            return
        expected.is_answered = True
        expected.tokens = float(tokens or expected.tokens)
        if expected.blocks and held.size:
            self._learn_expected(expected, held)
        else:
            held.late.append((session, expected.chain))

    def _take_expected(self, session: str, held: _Held, parent: int, own: array[int]) -> None:
        """Append blocks to those of an expected request; the first may continue a cached part."""
        expected = self._expected[session]
        blocks, before, is_first = expected.blocks, len(expected.blocks), not expected.blocks
        if not is_first and blocks[-1] != parent:
            return  # the request was also sent to another endpoint
        if is_first:
            most_tokens = 2 * expected.chain.total_bytes + _MORE_TOKENS
            cached = self._up_to(parent, most_tokens // held.size)
            if cached is None:
                del self._expected[session]
                return
            blocks.extend(cached)
        blocks.extend(own)
        if is_first and expected.is_answered:
            self._learn_expected(expected, held)
        self._expected_blocks += len(blocks) - before
        while self._expected_blocks > MAX_EXPECTED_BLOCKS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, oldest = self._expected.popitem(last=False)
        self._expected_blocks -= len(oldest.blocks)

    def _up_to(self, hash_: int, most: int) -> list[int] | None:
        """Return a prompt's blocks up to this one; None if over `most` or if one is missing."""
        found = []
        while hash_:
            found.append(hash_)
            hash_ = self._parents.get(hash_, -1)
            if hash_ < 0 or len(found) > most:
                return None
        return found[::-1]

    def _learn_expected(self, expected: _Expected, held: _Held) -> None:
        most = float(held.size * (len(expected.blocks) + 1) - 1)
        tokens = max(1, round(min(expected.tokens, most)))
        self.learn(held.model, expected.chain, tokens, held.size, expected.blocks)

    # -- texts ---------------------------------------------------------------------------------

    def learn(self, model: str, chain: Chain, tokens: int, size: int, blocks: array[int]) -> None:
        """Learn the blocks of a prompt, each of `size` tokens."""
        if not len(chain) or not tokens or not blocks or len(chain) > MAX_TEXTS:
            return
        known = self._known.setdefault(model, {})
        weight = max(len(chain), len(blocks) // _BLOCKS_EACH)
        ends = [(0, 0.0), (chain.total_bytes, float(tokens))]
        text = _Text(chain, tokens, size, blocks, ends, weight)
        self._anchor(text, *self._deepest(known, chain))
        for hash_ in chain.hashes:
            known[hash_] = text
        self._order[text] = model
        self.texts += weight
        while self.texts > MAX_TEXTS:
            old, of = self._order.popitem(last=False)
            self.texts -= old.weight
            others = self._known[of]
            for hash_ in old.chain.hashes:
                if others.get(hash_) is old:  # newer texts have taken over the shared blocks
                    del others[hash_]

    def _anchor(self, text: _Text, depth: int, other: _Text | None) -> None:
        """Record the token at which a text diverges from the deepest known text."""
        size = text.size
        if other is None or size != other.size:
            return
        place = text.chain.bytes_of(depth)
        # The next turn shares the answer's blocks too, which come after the offset.
        shared = min(shared_blocks(text.blocks, other.blocks), other.tokens // size)
        at, guess = float(size * shared), other.tokens_at(place)
        if depth == len(other.chain) and guess - at > size:
            return  # it continues, but the engine's template renders earlier turns differently
        at = min(max(at, guess), at + size - 1.0)  # known except for the last block
        before = [anchor for anchor in other.anchors[1:-1] if anchor[0] < place and anchor[1] <= at]
        if 0 < place < text.chain.total_bytes and at <= text.tokens:
            before = [(0, 0.0), *before[-_MAX_ANCHORS:], (place, at)]
            text.anchors = [*before, text.anchors[-1]]

    @staticmethod
    def _deepest(known: dict[int, _Text], chain: Chain) -> tuple[int, _Text | None]:
        """Return the number of known leading blocks, and their text; all ancestors are known."""
        hashes = chain.hashes
        depth = bisect_left(hashes, True, key=lambda hash_: hash_ not in known)
        return depth, known[hashes[depth - 1]] if depth else None

    # -- both ----------------------------------------------------------------------------------

    def correct(
        self,
        chain: Chain,
        shares: npt.NDArray[np.float64],
        claimed: Callable[[int], float],
        found_of_shown: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float64] | None:
        """Replace the text index's shares of a prompt with the shares from events.

        Return by slot the share that could be computed in the time it takes to fetch the slower
        copies; None if there are no slower copies.

        Args:
            chain: the prompt.
            shares: shares by slot, in 0..1; written to.
            claimed: returns the share of the prompt shared with requests in flight at a slot.
            found_of_shown: share of what events show that answers confirm, by slot.
        """
        places: dict[str, tuple[int, _Text] | None] = {}
        fetched: npt.NDArray[np.float64] | None = None
        for slot, held in self._slots.items():
            if not held.size or slot >= len(shares):
                continue
            if held.model not in places:
                places[held.model] = self._place(held.model, chain)
            place = places[held.model]
            if place is None or held.size != place[1].size:
                continue
            known_bytes, text = place
            share, tokens = known_bytes / chain.total_bytes, text.tokens_at(known_bytes)
            # An engine always computes a prompt's last token.
            wanted = int(tokens - (0 < tokens == chain.tokens)) // held.size
            found = self._held(slot, text.blocks, wanted)
            if held.states is not None:  # it resumes only where a state was kept
                at = held.resumed_at
                found = next((n for n in range(found, 0, -1) if text.blocks[n - 1] in at), 0)
            of_text = found * held.size / max(chain.tokens or tokens, 1.0)
            of_text *= 1.0 if chain.tokens else share
            if held.states is None:
                of_text *= found_of_shown.item(slot)
            believed = float(shares[slot])
            # A partial block of a chat is cached, as its answer completes it, but has no state.
            counted = found < wanted or chain.tokens or held.states is not None
            if of_text >= believed or (held.exact and counted):
                if of_text < believed:
                    late = (shared_blocks(chain.hashes, other.hashes) for _, other in held.late)
                    coming = min(believed, max(claimed(slot), chain.fraction(max(late, default=0))))
                    coming *= held.states is None  # its states may be kept anywhere
                    if chain.tokens:
                        coming -= coming % (held.size / chain.tokens)
                    of_text = max(of_text, coming)
                shares[slot] = min(1.0, of_text)
            if held.behind:
                fetched = np.zeros(len(shares)) if fetched is None else fetched
                of_text = worth(held.behind, text.blocks, found) * held.size / max(tokens, 1.0)
                fetched[slot] = min(share * of_text, shares[slot])
        return fetched

    def _place(self, model: str, chain: Chain) -> tuple[int, _Text] | None:
        """Return how many bytes of a prompt have known blocks, and by which text.

        A prompt that continues after a text's last full block is assumed to continue all of it.
        """
        depth, text = self._deepest(self._known.get(model, {}), chain)
        if text is None:
            return None
        continued = depth == len(text.chain) and text.chain.total_bytes <= chain.total_bytes
        return text.chain.total_bytes if continued else chain.bytes_of(depth), text

    def _held(self, slot: int, blocks: array[int], wanted: int) -> int:
        """Count the leading blocks that a slot holds; caches evict the end of a prompt first."""
        holders, bit = self._holders, 1 << slot
        wanted = min(wanted, len(blocks))
        if not wanted or not holders.get(blocks[0], 0) & bit:
            return 0
        if holders.get(blocks[wanted - 1], 0) & bit:
            return wanted
        return bisect_left(blocks, True, 1, wanted, key=lambda each: not holders.get(each, 0) & bit)
