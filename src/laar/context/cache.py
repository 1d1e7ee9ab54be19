"""A model of an engine's prefix cache that holds documents, to count expected hits.

Documents are of equal size and reuse is by leading documents only. The least recently used leaf
goes first. The system prompt, the question, decoded tokens and the rounding to KV blocks are left
out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class DocCache:
    """An LRU prefix cache of one endpoint.

    A node is a chained hash. A path is touched from its end to its root, so a parent is always at
    least as recent as its children and the oldest entry is always a leaf.

    Args:
        capacity_docs: nodes held; None is unbounded (for expected hits without eviction).
    """

    def __init__(self, capacity_docs: int | None) -> None:
        self._capacity = capacity_docs
        self._nodes: OrderedDict[int, int] = OrderedDict()  # the last request to use each
        self._requests = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def oldest(self) -> int:
        """Return the request, counted from 0, that last used the entry to be evicted first."""
        return next(iter(self._nodes.values()), self._requests)

    def resize(self, capacity_docs: int) -> None:
        """Set how many nodes are held; `put` evicts."""
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
        """Cache a request's documents and return how many leading ones were there before."""
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
