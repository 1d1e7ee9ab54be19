"""The online aligner: follow what was sent before, then put first what is likely to be shared next.

The index holds the orders that were sent, as a trie of chained hashes; equal documents of any order
therefore find the longest path that earlier requests took through the same documents. What is left
over is sorted by `affinity`; documents never seen keep their retrieval order, since moving them gains
nothing. This replaces the paper's online search, whose greedy descent by distance was measured to
reach 0.20 of the topic load where this one reaches 0.35 or more (design note, 4.4), at a cost that
grows with the tree's fan-out.

A path starts at a `seed`: a hash of the scope (tenant, route, model) and of everything before the
documents. Two prompts that differ there share no cache, so they share no path, and a seed that was
never sent leaves its documents in the order they came.

The trie is compressed where the money is: a path that only one order takes ends in that order, so that
its tail costs 8 bytes a position and a search compares it without probing.

Guarantees: the result is a permutation; it never shares a shorter path than the received order does;
aligning the result again, against the same index, returns it. Orders are dropped oldest first beyond
`capacity_docs` nodes and after `ttl_s`, which keeps the index about as old as the endpoints' caches; it
does not know what an engine really evicted. Hash collisions cost order, never content.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laar.context.affinity import Affinity

__all__ = ["Alignment", "OrderIndex"]

MAX_LOOKUPS = 1_500
"""Probes of one search, about 0.1 ms. Searches of 15 documents end by themselves before this in 99 of
100 cases of the measured loads; a cut search is still an alignment, only maybe a shorter one."""

_EXPIRE_AT_ONCE = 32  # per call, so that a burst of expiries can't cost one request a millisecond


@dataclass(frozen=True, slots=True)
class Alignment:
    """How documents are best sent.

    Args:
        permutation: received positions in sending order.
        matched: leading documents, as sent, that follow an order sent before.
        baseline: the same for the order as received.
    """

    permutation: tuple[int, ...]
    matched: int
    baseline: int


@dataclass(slots=True, eq=False)
class _Order:
    """One order that was sent: when last, from which seed, which documents."""

    sent_at: float
    seed: int
    docs: array[int]


class OrderIndex:
    """Orders sent, over all scopes; under 100 bytes for each document position held.

    Args:
        capacity_docs: positions held; the sum of what the endpoints' caches hold.
        ttl_s: an order not sent again for this long is dropped.
        half_life_s: of the popularity counts.
        max_scopes: scopes with popularity counts.
    """

    def __init__(
        self,
        *,
        capacity_docs: int = 30_000,
        ttl_s: float = 900.0,
        half_life_s: float = 600.0,
        max_scopes: int = 32,
    ) -> None:
        self._capacity = capacity_docs
        self._ttl_s = ttl_s
        self._half_life_s = half_life_s
        self._max_scopes = max_scopes
        self._forget()
        self._affinities: OrderedDict[int, Affinity] = OrderedDict()
        self.evicted_capacity = 0
        self.evicted_ttl = 0

    def _forget(self) -> None:
        # By chained hash of a path: how many orders go through it, or the one order that does.
        self._nodes: dict[int, int | _Order] = {}
        self._orders: OrderedDict[int, _Order] = OrderedDict()  # by whole path; the oldest first
        self._seeds: dict[int, int] = {}  # orders from each
        self._positions = 0

    def __len__(self) -> int:
        """Document positions held."""
        return self._positions

    @property
    def orders(self) -> int:
        """Orders held."""
        return len(self._orders)

    @property
    def scopes(self) -> int:
        """Scopes with popularity counts."""
        return len(self._affinities)

    def align(self, scope: int, seed: int, docs: Sequence[int], now: float) -> Alignment:
        """An order for `docs` (distinct 64-bit hashes)."""
        self._expire(now)
        affinity = self._affinities.get(scope)
        if affinity is None or seed not in self._seeds:
            return Alignment(tuple(range(len(docs))), 0, 0)
        likely = affinity.likely(docs, now)
        score = likely.score
        # By content where scores tie, so that neither arrival order nor a replica's history decides.
        ranked = sorted(docs, key=lambda doc: (-score[doc], doc))
        own = self.match(seed, docs)
        path = self._descend(seed, ranked, score, tuple(docs[:own]))
        taken = set(path)
        rest = [doc for doc in ranked if doc not in taken and doc in likely.known]
        new = [doc for doc in docs if doc not in taken and doc not in likely.known]
        at = {doc: i for i, doc in enumerate(docs)}
        return Alignment(tuple(at[doc] for doc in (*path, *rest, *new)), len(path), own)

    def match(self, seed: int, docs: Sequence[int]) -> int:
        """How many leading documents, in this very order, follow an order sent before."""
        node = seed
        for depth, doc in enumerate(docs):
            node = hash((node, doc))
            held = self._nodes.get(node)
            if held is None:
                return depth
            if isinstance(held, _Order):
                return depth + _common(docs[depth:], held.docs[depth:])
        return len(docs)

    def insert(self, scope: int, seed: int, docs: Sequence[int], now: float) -> None:
        """Records an order that an endpoint has accepted."""
        self._affinity(scope).observe(docs, now)
        whole = seed
        for doc in docs:
            whole = hash((whole, doc))
        order = self._orders.get(whole)
        if order is None:
            order = _Order(now, seed, array("Q", docs))
            self._orders[whole] = order
            self._seeds[seed] = self._seeds.get(seed, 0) + 1
            self._thread(order)
            while self._positions > self._capacity and len(self._orders) > 1:
                self._drop_oldest()
                self.evicted_capacity += 1
        else:
            order.sent_at = now
            self._orders.move_to_end(whole)
        self._expire(now)

    def _affinity(self, scope: int) -> Affinity:
        affinity = self._affinities.get(scope)
        if affinity is None:
            affinity = self._affinities[scope] = Affinity(self._half_life_s)
            if len(self._affinities) > self._max_scopes:
                self._affinities.popitem(last=False)
        self._affinities.move_to_end(scope)
        return affinity

    def _descend(
        self,
        seed: int,
        ranked: Sequence[int],
        score: Mapping[int, float],
        own: tuple[int, ...],
    ) -> tuple[int, ...]:
        """The longest path through `ranked`, depth first, starting from the received order's own.

        Of equally long ones the one whose next document makes the likeliest new prefix: a later
        request must hold all of it to gain.
        """
        nodes = self._nodes
        lookups = MAX_LOOKUPS
        best, longest = own, len(own)
        worth = _worth(own, ranked, score)
        stack: list[tuple[int, tuple[int, ...], Sequence[int]]] = [(seed, (), ranked)]
        while stack and lookups > 0:
            node, path, rest = stack.pop()
            lookups -= len(rest)
            for doc in [doc for doc in rest if hash((node, doc)) in nodes]:
                child = hash((node, doc))
                held = nodes[child]
                left = [other for other in rest if other != doc]
                if not isinstance(held, _Order):
                    here = (*path, doc)
                    stack.append((child, here, left))
                else:
                    tail = held.docs[len(path) :]
                    count = 1
                    while count < len(tail) and tail[count] in left:
                        count += 1
                    here = (*path, *tail[:count])
                if len(here) >= longest:
                    chance = _worth(here, ranked, score)
                    if len(here) > longest or chance > worth:
                        best, longest, worth = here, len(here), chance
        return best

    def _thread(self, order: _Order) -> None:
        """Counts an order in along its path, down to where it is alone."""
        nodes = self._nodes
        docs = order.docs
        node = order.seed
        pushed: _Order | None = None  # an order that was alone on this path until now
        for depth, doc in enumerate(docs):
            parent, node = node, hash((node, doc))
            if pushed is not None and (depth >= len(pushed.docs) or pushed.docs[depth] != doc):
                if depth < len(pushed.docs):
                    nodes[hash((parent, pushed.docs[depth]))] = pushed
                pushed = None
            held = nodes.get(node)
            if isinstance(held, _Order):
                pushed = held
            if pushed is not None:
                nodes[node] = 2
            elif isinstance(held, int):
                nodes[node] = held + 1
            else:
                nodes[node] = order
                self._positions += len(docs) - depth
                return
        if pushed is not None and len(pushed.docs) > len(docs):
            nodes[hash((node, pushed.docs[len(docs)]))] = pushed

    def _expire(self, now: float) -> None:
        if not self._orders:
            return
        if now - next(reversed(self._orders.values())).sent_at > self._ttl_s:
            self.evicted_ttl += len(self._orders)
            self._forget()
            return
        for _ in range(_EXPIRE_AT_ONCE):
            if now - next(iter(self._orders.values())).sent_at <= self._ttl_s:
                return
            self._drop_oldest()
            self.evicted_ttl += 1

    def _drop_oldest(self) -> None:
        _, order = self._orders.popitem(last=False)
        nodes, seeds = self._nodes, self._seeds
        seeds[order.seed] -= 1
        if not seeds[order.seed]:
            del seeds[order.seed]
        node = order.seed
        for depth, doc in enumerate(order.docs):
            node = hash((node, doc))
            held = nodes[node]
            if isinstance(held, _Order):
                del nodes[node]
                self._positions -= len(order.docs) - depth
                return
            if held == 1:
                del nodes[node]
                self._positions -= 1
            else:
                nodes[node] = held - 1


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    for i, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return i
    return min(len(a), len(b))


def _worth(path: Sequence[int], ranked: Sequence[int], score: Mapping[int, float]) -> float:
    """The chance that a request holds the path and the likeliest document after it."""
    chance = next((score[doc] for doc in ranked if doc not in path), 1.0)
    for doc in sorted(path):  # a fixed order, so that equal sets are exact ties
        chance *= score[doc]
    return chance
