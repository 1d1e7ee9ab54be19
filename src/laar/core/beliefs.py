"""The director's estimates, made by the algorithm packages.

Models come from `laar.accuracy`, caches from `laar.prefix`. Only translation happens here: requests
become features and chains, slots become arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features, features_of, language_of, task_name
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.success import SuccessModel
from laar.accuracy.tasks import TaskNames
from laar.accuracy.text import Said
from laar.accuracy.tokens import TokenEstimator
from laar.core.endpoints import Floats
from laar.core.interfaces import Assessment, Demand
from laar.core.request import Request
from laar.errors import SettingError
from laar.prefix import PrefixIndex, PromptHasher
from laar.prefix.blocks import GROWING, Chain
from laar.prefix.demand import PrefixDemand
from laar.prefix.density import Density
from laar.prefix.evictions import Evictions
from laar.prefix.index import Receipt
from laar.prefix.tokens import Stored, TokenBlocks

__all__ = ["CapabilityAssessor", "PrefixBeliefs", "read_capability"]

MAX_CELLS = 4096
"""Cells whose evidence is kept at hand: clients may name any task, so the number needs a cap.
Beyond it the table starts again, which costs microseconds a cell."""

MAX_LISTS = 16
"""Lists of models whose constants are kept: that of the fleet, and one for each virtual name that
stands for adapters."""

MAX_ROOTS = 10_000
"""First blocks of prompts known by the engine's name, for each endpoint; a megabyte."""

_ROOT_MARGIN = 1.25
"""Text is longer in some first blocks than in a mean one. Too long is harmless: prompts that share
the engine's block count as several, of which one is forgotten."""

BYTES_PER_TOKEN = 4
"""Bytes per token of English prose, assumed for prompts until engines report lengths."""


def read_capability(path: Path) -> CapabilityModel:
    """Reads an artifact of `laar fit`.

    Raises:
        SettingError: the file cannot be read, or is not a usable artifact; the text gives the
            reason.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: can't be read: {error.strerror}; run `laar fit`") from None
    digest = blake2b(data, digest_size=16).hexdigest()
    return CapabilityModel(parse_artifact(data, source=str(path)), digest)


@dataclass(slots=True)
class _Constants:
    """Constants of one list of models, the same for every request."""

    seconds_per_token: Floats
    base_s: Floats
    evidence: dict[Features, Floats]


class CapabilityAssessor:
    """Estimates models by an artifact, and prompt lengths by the lengths that engines report.

    Args:
        capability: the model read from the artifact.
        online: outcomes reported meanwhile; None to use the artifact alone.
        tasks: names that every client may use, besides the artifact's.
    """

    def __init__(
        self,
        capability: CapabilityModel,
        online: OnlineOutcomes | None = None,
        tasks: Iterable[str] = (),
    ) -> None:
        self.capability = capability
        self._tasks = frozenset(tasks)
        self.task_names = TaskNames(self._tasks | set(capability.tasks))
        self.success = SuccessModel(capability, online)
        self.tokens = TokenEstimator(capability.chars_per_token)
        self._constants: dict[tuple[str, ...], _Constants] = {}

    def use(self, capability: CapabilityModel) -> None:
        """Replaces the artifact. The online evidence stays, now around the new prior."""
        self.capability = self.success.capability = capability
        self.task_names.known = self._tasks | set(capability.tasks)
        self.tokens.begin(capability.chars_per_token)
        self._constants.clear()

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Looks every model up for this request's features."""
        key = tuple(models)
        constants = self._constants.get(key) or self._learn_models(key)
        language = language_of(request.question)
        tokens = self.tokens.estimate_each(request.chars, language, key)
        length = self.tokens.estimate(request.chars, language)
        task = task_name(request.task) if request.task else ""
        if task and not self.task_names.taken(request.tenant, task, now):
            task = ""
        features = features_of(request.question, length, task=task or None)
        published = self.capability.probabilities(key, features)
        said = Said(request.question, request.system, request.marks)
        features, shares, unlike = self.capability.guess(features, said)
        evidence = constants.evidence.get(features)
        if evidence is None:
            if len(constants.evidence) >= MAX_CELLS:
                constants.evidence.clear()
            evidence = constants.evidence[features] = np.array(
                [self.capability.evidence(model, features).outcomes for model in key], np.float64
            )
        return Assessment(
            tokens=tokens,
            probability=self.success.probabilities(key, features, tried, now, shares),
            evidence=evidence,
            seconds_per_token=constants.seconds_per_token,
            base_s=constants.base_s,
            cell=features,
            unknown=not self.capability.models,
            timed_answers=self.capability.timed,
            unlike=unlike,
            published=published,
            reported=self._reported(key, features, now),
        )

    def _reported(self, models: tuple[str, ...], features: Features, now: float) -> Floats | None:
        online = self.success.online
        return np.array(online.outcomes(models, features, now)) if online else None

    def _learn_models(self, models: tuple[str, ...]) -> _Constants:
        if len(self._constants) >= MAX_LISTS:
            self._constants.clear()
        made = self._constants[models] = _Constants(
            self.capability.seconds_per_token(models), self.capability.fixed_s(models), {}
        )
        return made

    def usage(self, request: Request, model: str, prompt_tokens: int) -> None:
        """Learns characters per token."""
        self.tokens.observe(request.chars, language_of(request.question), model, prompt_tokens)


class PrefixWatcher(Protocol):
    """Reports one picker's entries to others; implemented by `laar.sharing.prefixes`."""

    def entered(self, slot: int, chain: Chain, receipt: Receipt) -> None:
        """A prompt was entered here."""
        ...

    def ended(self, receipt: Receipt, *, ok: bool, share: float | None) -> None:
        """Its request ended; also called for entries of other pickers."""
        ...

    def cleared(self, slot: int) -> bool:
        """A slot's cache was emptied; False where that is known already."""
        ...


class PrefixBeliefs:
    """Estimates which endpoint holds which prefix.

    Args:
        key: secret of the hashes.
        max_bytes: memory for the index.
    """

    def __init__(self, *, key: bytes, max_bytes: int) -> None:
        self._hasher = PromptHasher(key)
        self.index = PrefixIndex(0, max_bytes)
        self.popular = PrefixDemand()
        self.evictions = Evictions()
        self.blocks_held = TokenBlocks()
        self._roots: dict[int, dict[int | bytes, int]] = {}
        self._density = Density(BYTES_PER_TOKEN)
        self._slots = 0
        self.watcher: PrefixWatcher | None = None

    def chain(self, request: Request, weights: str = "") -> Chain:
        """Hashes the prompt; other salts and other weights share nothing."""
        salt = f"{request.salt}\0{weights}" if weights else request.salt
        return self._hasher.chain(request.spans, salt)

    def match(self, chain: Chain, capacity: int) -> Floats:
        """The share of the prompt, in 0..1, that each slot below `capacity` holds."""
        if capacity > self._slots:
            self.make_room(capacity)
        shares = self.index.shares(chain)
        if self.blocks_held.texts:
            self.blocks_held.correct(chain, shares, lambda slot: self.index.claimed(slot, chain))
        return shares

    def make_room(self, capacity: int) -> None:
        """Takes slots below `capacity`."""
        if capacity > self._slots:
            self._slots = capacity
            self.index.resize(capacity)

    def blocks(self, total_bytes: int) -> int:
        """Most blocks that a prompt of this length can have."""
        return GROWING.blocks(total_bytes)

    def rekey(self, key: bytes) -> None:
        """Hashes by another secret from now on; all entries made by the old one are gone."""
        self._hasher = PromptHasher(key)
        for slot in range(self._slots):
            self.index.drop(slot)
        self.popular = PrefixDemand()
        self.evictions = Evictions()

    def insert(self, slot: int, chain: Chain, now: float) -> Receipt:
        """Notes that the slot will hold the prompt."""
        receipt = self.heard(slot, chain, now)
        if self.watcher is not None:
            self.watcher.entered(slot, chain, receipt)
        return receipt

    def heard(self, slot: int, chain: Chain, now: float) -> Receipt:
        """The same as `insert`, for a decision of another picker."""
        self.popular.note(chain, now)
        self.evictions.note(chain, now)
        return self.index.insert(slot, chain, now)

    def demand(self, chain: Chain, now: float) -> Demand | None:
        """How many requests share how much of the prompt; None when nothing is known."""
        return self.popular.expected(chain, now)

    def again(self, chain: Chain, shares: Floats, now: float) -> Floats | None:
        """The share, by slot, of the text evicted by the prompt that is requested again.

        It is a share of the prompt's uncached part: 0 where the cache has room for that part. None
        where every cache has room.
        """
        index, slots = self.index, len(shares)
        room = index.room_bytes[:slots] - index.held_bytes[:slots]
        if np.minimum.reduce(room) >= max(chain.total_bytes, 1):  # for long so, or not
            return None
        fresh = np.maximum(chain.total_bytes * (1.0 - shares), 1.0)
        over = fresh - room
        full = (over > 0.0).nonzero()[0]
        if not len(full):
            return None
        again = np.zeros(slots)
        pushed_out = np.minimum(over[full] / fresh[full], 1.0)
        again[full] = self.evictions.again(now - index.oldest_at[full]) * pushed_out
        return again

    def retract(self, receipt: Receipt) -> None:
        """Takes an entry back: the request failed."""
        self.index.retract(receipt)
        if self.watcher is not None:
            self.watcher.ended(receipt, ok=False, share=None)

    def settle(self, receipt: Receipt, share: float | None, prompt_tokens: int = 0) -> None:
        """The request ended well.

        `share` is the share of the prompt that the engine reported as cached, None without a
        report. `prompt_tokens` is the reported length, 0 without a report.
        """
        if self.index.settle(receipt, share) and prompt_tokens > 0 and receipt.chain.total_bytes:
            self._density.learn(receipt.slot, receipt.chain.total_bytes, prompt_tokens)
        if self.watcher is not None:
            self.watcher.ended(receipt, ok=True, share=share)

    def drop(self, slot: int) -> None:
        """Forgets a slot."""
        self.blocks_held.drop(slot)
        self._roots.pop(slot, None)
        self._density.drop(slot)
        if slot < self._slots:
            self.index.drop(slot)

    def bytes_per_token(self) -> float:
        """Bytes of prompts in a token, over all slots."""
        return self._density.mean

    def clear(self, slot: int, *, late: bool = False) -> None:
        """Forgets the slot's cached prompts; requests in flight still count.

        `late`: it was empty some time ago. If another picker has reported it meanwhile, the prompts
        since then stay.
        """
        first = self.watcher is None or self.watcher.cleared(slot)
        if first or not late:
            self.heard_clear(slot)

    def heard_clear(self, slot: int) -> None:
        """The same as `clear`, for an event that another picker saw."""
        if slot < self._slots:
            self.index.clear(slot)

    # -- the engines' own events ---------------------------------------------------------------

    def stored(self, slot: int, model: str, event: Stored, *, past: bool = False) -> None:
        """Blocks entered a slot's cache.

        Where a prompt begins there whose first block is new to the slot, the text index learns
        the engine's name of it, if that can only be the one request in flight. Events of the past
        are of requests that may have ended, and name none.
        """
        self.blocks_held.stored(slot, model, event)
        begins = event.parent is None and event.hashes and not event.host
        if begins and not past and slot < self._slots:
            known = self._roots.setdefault(slot, {})
            if not self.index.knows_first_block(slot):
                first_bytes = _ROOT_MARGIN * event.block_size * self._density.of(slot)
                self.index.set_first_block(slot, first_bytes)
            begun = self.index.new_roots(slot).difference(known.values())
            if len(begun) == 1 and len(known) < MAX_ROOTS:
                known[event.hashes[0]] = begun.pop()

    def removed(self, slot: int, hashes: Sequence[int | bytes], *, host: bool = False) -> None:
        """Blocks left a slot's cache, or the host's; with a prompt's first one, all of it is gone.

        Not while there is a copy in the other.
        """
        known = self._roots.get(slot, {})
        for name in self.blocks_held.removed(slot, hashes, host=host):
            first = known.pop(name, None)
            if first is not None:
                self.index.forget_root(slot, first)

    def emptied(self, slot: int, model: str, *, past: bool = False, at_s: float = math.nan) -> None:
        """A slot's cache is empty since `at_s`; its events are followed from here on.

        In the past it was so before this picker listened: what requests have taught since, or a
        snapshot has brought, stays.
        """
        self.blocks_held.emptied(slot, model, at_s)
        self._roots.pop(slot, None)
        if not past:
            self.clear(slot)

    def restarted(self, slot: int, started_s: float = math.nan) -> None:
        """A slot's engine was seen to have restarted, at that time by its clock."""
        if self.blocks_held.restarted(slot, started_s):
            return  # what was sent since then stays
        self._roots.pop(slot, None)
        self.clear(slot, late=True)

    def lost(self, slot: int) -> None:
        """Events of a slot were lost. The text index stays: its misses correct it."""
        self.blocks_held.lost(slot)
        self._roots.pop(slot, None)

    def oldest_at(self, slot: int) -> float:
        """The last use, in seconds, of the prompt that a slot's cache would lose first."""
        return float(self.index.oldest_at[slot]) if 0 <= slot < self._slots else -math.inf

    def restore_sizes(self, bytes_per_token: float, rooms_bytes: Mapping[int, int]) -> None:
        """Restores what was known of sizes, by slot, until engines report: prompts fit into it."""
        self._density = Density(bytes_per_token)
        for slot, room_bytes in rooms_bytes.items():
            self.index.set_capacity(slot, room_bytes)

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Takes the engine's report of how many tokens its cache holds."""
        if slot < self._slots and tokens == tokens:  # NaN is not equal to itself: not known
            self.index.set_capacity(slot, int(tokens * self._density.of(slot)))
