"""Estimate which endpoint has which prefix cached, from the index and its corrections.

A decision calls `PrefixBeliefs.look_up` once: the prompt is joined and encoded a single time, for
both its hashes and its length in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from msgspec import Meta

from laar.prefix.blocks import Chain, PromptHasher
from laar.prefix.demand import PrefixDemand
from laar.prefix.density import Density
from laar.prefix.evictions import Evictions
from laar.prefix.found import FoundShares
from laar.prefix.index import LEAST_MISS_BYTES, PrefixIndex, Receipt
from laar.prefix.lengths import PromptLengths
from laar.prefix.match import Floats, PrefixMatch, Prompt
from laar.prefix.states import States
from laar.prefix.templates import Template, template_for
from laar.prefix.tokens import TokenBlocks

BYTES_PER_TOKEN = 4
"""Bytes per token of English prose; assumed until engines report prompt lengths."""

_MISSED = 0.5
"""Share of what KV events show below which an answer contradicts them."""
_LEAST_SHOWN = 0.1
"""Least factor on what events show, so that later answers can confirm it again."""

_Amount = Annotated[float, Meta(ge=0, lt=1e12)]


class ShownCaching(NamedTuple):
    """What an engine's answers have shown: sums of densities and finds, if any find."""

    density: Annotated[list[_Amount], Meta(min_length=2, max_length=2)]
    found: Annotated[list[_Amount], Meta(min_length=3, max_length=3)]
    shown: Annotated[list[_Amount], Meta(min_length=3, max_length=3)]
    reuses: Annotated[int, Meta(ge=-1, le=1)] = 0


class PrefixWatcher(Protocol):
    """Reports one picker's entries to others; implemented by `laar.sharing.prefixes`."""

    def entered(self, slot: int, chain: Chain, receipt: Receipt) -> None:
        """Handle a prompt that this picker added to its index."""

    def ended(self, receipt: Receipt, *, ok: bool, share: float | None) -> None:
        """Handle the end of an entry's request; also called for other pickers' entries."""


class PrefixBeliefs:
    """Estimates which endpoint has which prefix cached.

    Args:
        key: secret that keys the hashes.
        max_bytes: memory limit of the index.
    """

    def __init__(self, *, key: bytes, max_bytes: int) -> None:
        self._hasher = PromptHasher(key)
        self.index = PrefixIndex(0, max_bytes)
        self.found = FoundShares()
        self.shown = FoundShares()  # the same for KV events: some engines lose states without one
        self.popular = PrefixDemand()
        self.evictions = Evictions()
        self.blocks_held = TokenBlocks()  # empty if no engine publishes KV events, as most do not
        self.states = States()  # empty if no model has a recurrent state
        self.templates: dict[str, Template] = {}  # by model, as revealed by engines
        self.density = Density(BYTES_PER_TOKEN)
        self.lengths = PromptLengths()
        self.watcher: PrefixWatcher | None = None

    def look_up(
        self,
        prompt: Prompt,
        weights: str,
        models: Sequence[str],
        guess: Floats,
        now: float,
    ) -> PrefixMatch:
        """Match a prompt with every cache, and estimate its length.

        Args:
            prompt: the request.
            weights: key of its adapters (`Names.weights`); empty means the endpoints' own models.
            models: the models for which to estimate tokens.
            guess: tokens according to another estimate; shape ``(len(models),)``.
            now: monotonic seconds.
        """
        template = template_for(prompt.model, models, self.templates)
        spans = template.arranged(prompt.spans)
        chain, text = self._read(prompt, weights, spans)
        tokens = guess
        if text is not None and not prompt.tokens:
            tokens = self.lengths.estimate(chain, text, models, guess)
        shares, fetched, left = self.match(chain)
        demand = self.popular.expected(chain, now)
        again = self.again(chain, shares, now)
        if template.tools_weight != 1.0:
            shares = template.by_tokens(shares, spans, chain.total_bytes)
        return PrefixMatch(chain, tokens, shares, demand, again, fetched, left)

    def chain(self, prompt: Prompt, weights: str = "") -> Chain:
        """Hash a prompt; prompts with different salts or weights share nothing."""
        return self._read(prompt, weights, prompt.spans)[0]

    def _read(
        self, prompt: Prompt, weights: str, spans: Sequence[str]
    ) -> tuple[Chain, bytes | None]:
        """Return the hashes of the prompt made of these spans, and its text.

        The text is None in a simulator's subclass that has only hashes, and estimates no length.
        """
        text = "".join(spans).encode("utf-8", "surrogatepass")
        salt = f"{prompt.salt}\0{weights}" if weights else prompt.salt
        tokens = 0 if text[:2] == b"[[" else prompt.tokens  # `[[`: several prompts in one
        return self._hasher.chain_of(text, salt, tokens), text

    def match(self, chain: Chain) -> tuple[Floats, Floats | None, Floats | None]:
        """Return `shares`, `fetched` and `left` of a `PrefixMatch`."""
        held, fetched, left = self.index.shares(chain), None, None
        shares = held * self.found.shares
        told = (shares * chain.total_bytes >= LEAST_MISS_BYTES) & (self.found.reuses < 0)
        for slot in told.nonzero()[0].tolist():
            if self.index.claims[slot]:  # idle siblings should get copies, too
                shares[slot] = max(0.0, shares.item(slot) - self.index.claimed(slot, chain))
        if self.states.grids:
            self.states.limit(chain, shares, self.density.mean)
            self.states.left(chain, held, self.density.mean)
            left = held
        if self.blocks_held.texts:
            fetched = self.blocks_held.correct(
                chain,
                shares,
                lambda slot: self.index.claimed(slot, chain),
                np.maximum(self.shown.shares, _LEAST_SHOWN),
            )
        return shares, fetched, left

    def computed(self, slot: int, chain: Chain, share: float) -> float:
        """Return how much of a slot's share of a prompt its engine has computed by now.

        The rest is claimed by requests in flight, whose prefill may not be done.
        """
        if share > self.index.claimed(slot, chain):
            return share
        return min(share, self.index.proven(slot, chain))

    def without_pulls(self, slot: int, chain: Chain, share: float) -> float:
        """Return the part of the share that does not depend on a pull in progress there."""
        others = self.index.claimed(slot, chain, pulled=False)
        return max(self.computed(slot, chain, share), min(share, others))

    def make_room(self, capacity: int) -> None:
        """Make room for slots below `capacity`, before anything else is called with one of them."""
        self.index.resize(capacity)
        self.found.resize(capacity)
        self.shown.resize(capacity)

    def rekey(self, key: bytes) -> None:
        """Switch to a different secret, and forget all entries hashed with the old secret."""
        self._hasher = PromptHasher(key)
        for slot in range(len(self.index.room_bytes)):
            self.index.drop(slot)
        self.popular = PrefixDemand()
        self.evictions = Evictions()

    def insert(self, slot: int, chain: Chain, now: float, *, heard: bool = False) -> Receipt:
        """Record that a prompt was sent to a slot; `heard` if by another picker."""
        if not chain.counted:  # else already counted for another endpoint of this request
            chain.counted = True
            self.popular.note(chain, now)
            self.evictions.note(chain, now)
        receipt = self.index.insert(slot, chain, now)
        if self.states.grids:
            density = self.density.of(slot)
            receipt.state = self.states.sent(slot, chain, density, receipt.held)
        if not heard:
            receipt.counted = self.found.counted.get(slot)
        if self.watcher is not None and not heard:
            self.watcher.entered(slot, chain, receipt)
        return receipt

    def again(self, chain: Chain, shares: Floats, now: float) -> Floats | None:
        """Return `PrefixMatch.again`, which is 0 where the uncached part has room."""
        index, slots = self.index, len(shares)
        free = index.room_bytes[:slots] - index.held_bytes[:slots]
        if np.minimum.reduce(free) >= max(chain.total_bytes, 1):  # usually all have room, or none
            return None
        fresh = np.maximum(chain.total_bytes * (1.0 - shares), 1.0)
        over = fresh - free
        full = (over > 0.0).nonzero()[0]
        if not len(full):
            return None
        again = np.zeros(slots)
        pushed_out = np.minimum(over[full] / fresh[full], 1.0)
        again[full] = self.evictions.again(now - index.oldest_at[full]) * pushed_out
        return again

    def retract(self, receipt: Receipt) -> None:
        """Remove an entry because its request failed."""
        self.index.retract(receipt)
        if self.watcher is not None:
            self.watcher.ended(receipt, ok=False, share=None)

    def settle(
        self,
        receipt: Receipt,
        share: float | None,
        prompt_tokens: int = 0,
        model: str = "",
        shown: float = 0.0,
    ) -> None:
        """Learn from a request that succeeded.

        Args:
            receipt: the receipt from `insert`.
            share: share of the prompt that the engine reported as cached; None if not reported.
            prompt_tokens: the reported length; 0 if not reported.
            model: the model that reported it; empty to learn no length.
            shown: share that was believed cached at the decision, if known.
        """
        if prompt_tokens > 0 and model:
            self.lengths.learn(receipt.chain, model, prompt_tokens)
        chain, proven = receipt.chain, receipt.proven
        is_silent = share is None and prompt_tokens > 0
        if share or is_silent or (share == 0.0 and chain.bytes_of(proven) >= LEAST_MISS_BYTES):
            self.found.saw(receipt.slot, found=bool(share))
        if share is not None and share < _MISSED * shown:
            self.blocks_held.missed(receipt.slot, chain, share * prompt_tokens)
        if self.states.grids or self.blocks_held.blocks:
            share = self._evidence(receipt, share, prompt_tokens)
        if self.index.settle(receipt, share):
            is_known = share is not None or receipt.counted is not None
            if is_known and chain.bytes_of(proven) >= LEAST_MISS_BYTES:
                believed = chain.fraction(proven)
                self.found.answered(receipt.slot, believed, share, receipt.counted)
                if share is not None and shown:
                    shown /= max(self.shown.shares.item(receipt.slot), _LEAST_SHOWN)
                    self.shown.answered(receipt.slot, min(shown, believed), share, None)
            if prompt_tokens > 0 and chain.total_bytes:
                self.density.learn(receipt.slot, chain.total_bytes, prompt_tokens)
        if self.watcher is not None:
            self.watcher.ended(receipt, ok=True, share=share)

    def _evidence(self, receipt: Receipt, share: float | None, tokens: int) -> float | None:
        """Return the share that an engine found, as far as it tells what its cache holds.

        A miss may be for lack of a state; the state after this prompt is recorded.
        """
        chain, slot = receipt.chain, receipt.slot
        if slot in self.states.grids:
            length = tokens or chain.total_bytes / self.density.of(slot)
            self.states.ended(slot, chain, length, receipt.state)
        elif not self.blocks_held.keeps_states(slot):
            return share
        receipt.counted = None
        return None

    def state(self, slot: int) -> ShownCaching:
        """Return what the answers of a slot's engine have shown."""
        found, shown = (each.sums[:, slot].tolist() for each in (self.found, self.shown))
        density, reuses = self.density.sums.get(slot, [0.0, 0.0]), self.found.reuses.item(slot)
        return ShownCaching(density, found, shown, reuses)

    def restore(self, slot: int, shown: ShownCaching) -> None:
        """Restore a result of `state`."""
        self.density.sums[slot] = shown.density
        self.found.restore(slot, shown.found)
        self.found.reuses[slot] = self.found.reuses[slot] or shown.reuses
        self.shown.restore(slot, shown.shown)

    def drop(self, slot: int) -> None:
        """Forget a slot."""
        self.blocks_held.drop(slot)
        self.states.use(slot, None)
        self.density.drop(slot)
        self.found.drop(slot)
        self.shown.drop(slot)
        self.index.drop(slot)

    def clear(self, slot: int) -> None:
        """Forget the slot's cached prompts, but not those of requests in flight."""
        self.states.clear(slot)
        self.index.clear(slot)

    def emptied(self, slot: int, model: str, *, past: bool = False, at_s: float = math.nan) -> None:
        """Record that a slot's cache was emptied at `at_s` by its engine's clock; track its events.

        If `past`, it was emptied before the picker listened, so entries from requests or a snapshot
        are kept.
        """
        self.blocks_held.emptied(slot, model, at_s)
        if not past:
            self.clear(slot)

    def restarted(self, slot: int, started_s: float = math.nan) -> None:
        """Record that a slot's engine restarted, at `started_s` by its clock."""
        if not self.blocks_held.restarted(slot, started_s):  # else keep the prompts sent since
            self.clear(slot)

    def oldest_at(self, slot: int) -> float:
        """Return the time of the last use of the prompt that a slot's cache would evict first."""
        return float(self.index.oldest_at[slot]) if slot >= 0 else -math.inf

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Set the cache size in tokens, as reported by the engine."""
        if tokens == tokens:  # not NaN (unknown)
            self.index.set_capacity(slot, int(tokens * self.density.of(slot)))
