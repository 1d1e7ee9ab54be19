"""The online aligner: follow an earlier order, then put documents likely to be shared first.

The index stores the orders sent as a trie. A search finds the longest path of earlier requests that
consists of the request's documents, in any order. The remaining documents are sorted by `affinity`;
unseen documents keep their retrieval order, since moving them gains nothing. This replaces the
paper's online search, a greedy descent by distance whose cost grows with the tree's fan-out, which
finds 0.20 of the documents where this finds 0.35 or more (`laar lab run context-hits`).

A path starts at a `seed`: a hash of the scope (tenant, route, model) and of everything before the
documents. Two prompts that differ there share no cached prefix, so they share no path, and
documents under an unknown seed keep their received order.

Only shared prefixes of orders have nodes. Below them the trie points to the order itself, whose
tail costs 8 bytes per document and is compared directly.

Guarantees: the result is a permutation, it shares at least as long a path as the received order,
and aligning it again with the same index does not change it. Orders beyond `capacity_docs` nodes
are evicted, oldest first. Each order records its last endpoint, so that `forget` can drop orders
when an engine reports evictions. Hash collisions affect order, never content.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import eq
from typing import ClassVar

from laar.context.affinity import Affinity
from laar.latest import Latest

MAX_BRANCHES = 60
"""Maximum number of branches per search (0.06 ms). A truncated search may find a shorter path. The
hit rate on measured loads is at most 0.0007 lower than with 100 branches (0.002 with 40)."""

_SHALLOW = 32
"""Number of documents for which `MAX_BRANCHES` suffices. Each additional document allows one more
branch; otherwise the search could not reach the end of a long list."""

CAPACITY_DOCS = 30_000
"""Number of documents whose order is remembered: 0.1 KB each, up to 0.9 KB if many orders differ
only in their last document."""

_MOST_SHARED = 32
"""Maximum number of documents in all orders (8 bytes each), as a multiple of `capacity_docs`, which
alone does not limit them: long orders that differ only at the end take one position each."""

_DROP_AT_ONCE = 32  # per call, so that no request waits a millisecond for a smaller capacity
_FORGET_AT_ONCE = 256  # when an endpoint's cache is gone (2 ms)


@dataclass(slots=True, eq=False)
class _Order:
    """An order that was sent, with the time and the endpoint of the last request that used it."""

    count: ClassVar = 1  # the number of orders below it, as in a branch

    sent_at: float
    seed: int
    docs: array[int]
    endpoint: str


@dataclass(slots=True, eq=False)
class _Branch:
    """A path that `count` orders share, and their continuations by the next document."""

    count: int
    below: dict[int, _Branch | _Order]


MAX_SCOPES = 32
"""Maximum number of scopes with popularity counts (0.5 MB each); LRU eviction."""


class OrderIndex:
    """Index of orders sent, over all scopes.

    A document position takes 80 to 190 bytes; 900 if many orders differ only in the last document.

    Attributes:
        orders: the orders, by the hash of all their documents, oldest first.
        affinities: popularity counts by scope.
    """

    def __init__(self, *, capacity_docs: int = CAPACITY_DOCS) -> None:
        self.capacity_docs = capacity_docs
        self.affinities: Latest[int, Affinity] = Latest(MAX_SCOPES)
        self._roots: dict[int, _Branch] = {}  # by seed
        self.orders: OrderedDict[int, _Order] = OrderedDict()
        self._sent_to: dict[str, dict[int, None]] = {}  # by endpoint; oldest first
        self._positions = 0
        self._docs = 0  # documents of all orders

    def __len__(self) -> int:
        """Return the number of document positions held."""
        return self._positions

    def align(self, scope: int, seed: int, docs: Sequence[int], now: float) -> tuple[int, ...]:
        """Return the best order for `docs` (distinct 64-bit hashes), as received positions.

        Args:
            scope: hash of tenant, route and model.
            seed: hash of the scope and everything before the documents.
            docs: documents as received.
            now: seconds, monotonic.
        """
        affinity = self.affinities.get(scope)
        root = self._roots.get(seed)
        if affinity is None or root is None:
            return tuple(range(len(docs)))
        score, known = affinity.likely(docs, now)
        # Break ties by content, so that neither arrival order nor history decides.
        ranked = sorted(sorted(docs), key=score.__getitem__, reverse=True)
        # Among equally long paths, take the one that a later request is most likely to contain
        # together with its next document. If only the order differs, take the one that begins with
        # the rarer document: branches with popular beginnings survive without this request.
        paths = _descend(root, set(ranked), tuple(docs[: self.match(seed, docs)]))
        path = paths[0]
        if len(paths) > 1:
            rank = {doc: i for i, doc in enumerate(ranked)}
            path = max(paths, key=lambda p: (_worth(p, ranked, score), [rank[doc] for doc in p]))
        at = {doc: i for i, doc in enumerate(docs)}
        rest = known.difference(path)
        order = [*path, *(doc for doc in ranked if doc in rest)]
        if len(order) < len(docs):
            placed = set(order)
            order += [doc for doc in docs if doc not in placed]
        return tuple(map(at.__getitem__, order))

    def match(self, seed: int, docs: Sequence[int]) -> int:
        """Return how many leading documents, in exactly this order, match an order sent before."""
        at = self._roots.get(seed)
        if at is None:
            return 0
        for depth, doc in enumerate(docs):
            below = at.below.get(doc)
            if below is None:
                return depth
            if isinstance(below, _Order):
                return depth + len([*takewhile(bool, map(eq, docs[depth:], below.docs[depth:]))])
            at = below
        return len(docs)

    def insert(
        self, scope: int, seed: int, docs: Sequence[int], now: float, *, endpoint: str = ""
    ) -> None:
        """Record the order of a request that is in flight or was accepted by an endpoint."""
        affinity = self.affinities[scope] = self.affinities.get(scope) or Affinity()
        affinity.observe(docs, now)
        self.place(seed, docs, now, endpoint=endpoint)

    def place(self, seed: int, docs: Sequence[int], now: float, *, endpoint: str) -> None:
        """Record an order without counting a request; an empty `endpoint` keeps the former."""
        whole = hash((seed, *docs))
        order = self.orders.get(whole)
        if order is None:
            order = self.orders[whole] = _Order(now, seed, array("Q", docs), "")
            self._docs += len(docs)
            self._thread(order)
        order.sent_at = now
        self.orders.move_to_end(whole)
        self._send(whole, order, endpoint or order.endpoint)
        self._shrink()

    def forget(self, endpoint: str, *, before: float | None = None) -> None:
        """Drop the orders whose last endpoint is the given one.

        Call this when an endpoint's cache was emptied, or the endpoint restarted or was removed.
        With `before`, a time in seconds, later orders are kept, since an LRU cache still has them.
        At most a few hundred orders are dropped at once; the others stay until later calls, or
        until they are the oldest. They cost nothing: prompts that follow them share them again.
        """
        sent = self._sent_to.get(endpoint, {})
        gone = takewhile(lambda o: before is None or self.orders[o].sent_at < before, sent)
        for whole in [*islice(gone, _FORGET_AT_ONCE)]:
            self._drop(whole)

    def retract(self, seed: int, docs: Sequence[int]) -> None:
        """Remove a refused request's order, unless an endpoint has received the same order."""
        order = self.orders.get(whole := hash((seed, *docs)))
        if order is not None and not order.endpoint:
            self._drop(whole)

    def _send(self, whole: int, order: _Order, endpoint: str) -> None:
        """Set an order's last endpoint (empty if unknown), and make it the latest order there."""
        if order.endpoint:
            there = self._sent_to[order.endpoint]
            del there[whole]
            if not there:
                del self._sent_to[order.endpoint]
        if endpoint:
            self._sent_to.setdefault(endpoint, {})[whole] = None
        order.endpoint = endpoint

    def _thread(self, order: _Order) -> None:
        """Add an order along its path, down to the first unshared document."""
        at = self._roots.setdefault(order.seed, _Branch(0, {}))
        at.count += 1
        docs = order.docs
        for depth, doc in enumerate(docs):
            below = at.below.get(doc)
            if below is None:
                at.below[doc] = order
                self._positions += len(docs) - depth
                return
            if isinstance(below, _Order):  # no longer alone here: move it one document down
                other = below
                below = at.below[doc] = _Branch(1, {})
                if len(other.docs) > depth + 1:
                    below.below[other.docs[depth + 1]] = other
            below.count += 1
            at = below

    def _shrink(self) -> None:
        """Drop some of the oldest orders beyond the capacity."""
        most, most_shared = self.capacity_docs, _MOST_SHARED * self.capacity_docs
        for _ in range(_DROP_AT_ONCE):
            if len(self.orders) < 2 or (self._positions <= most and self._docs <= most_shared):
                return
            self._drop(next(iter(self.orders)))

    def _drop(self, whole: int) -> None:
        order = self.orders.pop(whole)
        self._docs -= len(order.docs)
        self._send(whole, order, "")
        at = self._roots[order.seed]
        at.count -= 1
        if not at.count:
            del self._roots[order.seed]
        for depth, doc in enumerate(order.docs):
            below = at.below[doc]
            if isinstance(below, _Order):
                del at.below[doc]
                self._positions -= len(order.docs) - depth
                return
            below.count -= 1
            if not below.count:
                del at.below[doc]
                self._positions -= 1
            at = below


def _descend(root: _Branch, asked: set[int], own: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the longest of `own` and the paths through `asked` documents, searched depth first.

    No path contains a document twice, so visited documents need not be tracked.
    """
    best, longest = [own], len(own)
    toll = 1 + len(asked) // 32  # the cost of a branch, which grows with the number of documents
    left = MAX_BRANCHES + toll * max(0, len(asked) - _SHALLOW)
    stack: list[tuple[tuple[int, ...], dict[int, _Branch | _Order], set[int]]]
    stack = [((), root.below, root.below.keys() & asked)]
    while stack:
        path, below, found = stack.pop()
        for doc in sorted(found, key=lambda doc: below[doc].count) if len(found) > 1 else found:
            child = below[doc]
            if isinstance(child, _Order):
                docs = child.docs
                count = len(path) + 1
                while count < len(docs) and docs[count] in asked:
                    count += 1
                here = tuple(docs[:count])
            else:
                here = (*path, doc)
                left -= toll
                if left > 0 and (further := child.below.keys() & asked):
                    stack.append((here, child.below, further))
                    continue  # a longer path exists
            if len(here) > longest:
                best, longest = [here], len(here)
            elif len(here) == longest:
                best.append(here)
    return best


def _worth(path: Sequence[int], ranked: Sequence[int], score: Mapping[int, float]) -> float:
    """Return the probability that a request contains the path and its likeliest next document."""
    chance = next((score[doc] for doc in ranked if doc not in path), 1.0)
    for doc in sorted(path):  # in a fixed order, so that equal sets tie exactly
        chance *= score[doc]
    return chance
