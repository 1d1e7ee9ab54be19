"""A model of an engine's prefix cache with documents as units, to count expected hits.

Documents have equal size, and only leading documents are reused. The least recently used leaf is
evicted first. The system prompt, the question, decoded tokens and rounding to KV blocks are
ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class DocCache:
    """An LRU prefix cache of one endpoint.

    Nodes are chained hashes. A path is touched from its end to the root, so a parent is always at
    least as recent as its children and the oldest entry is a leaf.

    Args:
        capacity_docs: maximum nodes; None for unbounded (expected hits without eviction).
    """

    def __init__(self, capacity_docs: int | None) -> None:
        self._capacity = capacity_docs
        self._nodes: OrderedDict[int, int] = OrderedDict()  # last request to use each node
        self._requests = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def oldest(self) -> int:
        """Return the number, from 0, of the request that last used the next entry to evict."""
        return next(iter(self._nodes.values()), self._requests)

    def resize(self, capacity_docs: int) -> None:
        """Set the maximum nodes; the next `put` evicts the excess."""
        self._capacity = capacity_docs

    def match(self, docs: Sequence[int]) -> int:
        """Return how many leading documents are cached."""
        node = 0
        for count, doc in enumerate(docs):
            node = hash((node, doc))
            if node not in self._nodes:
                return count
        return len(docs)

    def put(self, docs: Sequence[int]) -> int:
        """Cache a request's documents; return how many leading ones were cached before."""
        hit = self.match(docs)
        path = [0]
        for doc in docs:
            path.append(hash((path[-1], doc)))
        for node in reversed(path[1:]):
            self._nodes[node] = self._requests
            self._nodes.move_to_end(node)
        self._requests += 1
        while self._capacity is not None and len(self._nodes) > self._capacity:
            self._nodes.popitem(last=False)
        return hit
