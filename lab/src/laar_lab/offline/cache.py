"""A model of an engine's prefix cache, in units of documents, for counting expected hits.

All documents are assumed to be equally long, and only leading documents are reused. The least
recently used leaf is evicted first. The system prompt, the question, decoded tokens and rounding to
KV blocks are ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, takewhile


class DocCache:
    """An LRU prefix cache of one endpoint.

    Nodes are chained hashes. A path is touched from its end to the root, so a parent is always at
    least as recent as its children and the oldest entry is a leaf.

    Args:
        capacity_docs: maximum number of nodes; if it is lowered, the next `put` evicts the excess.
    """

    def __init__(self, capacity_docs: float) -> None:
        self.capacity_docs = capacity_docs
        self._nodes: OrderedDict[int, None] = OrderedDict()

    def put(self, docs: Sequence[int]) -> int:
        """Cache a request's documents; return how many leading documents were cached."""
        path = self._path(docs)
        hit = len([*takewhile(self._nodes.__contains__, path)])
        for node in reversed(path):
            self._nodes[node] = None
            self._nodes.move_to_end(node)
        while len(self._nodes) > self.capacity_docs:
            self._nodes.popitem(last=False)
        return hit

    @staticmethod
    def _path(docs: Sequence[int]) -> list[int]:
        return [*accumulate(docs, lambda node, doc: hash((node, doc)), initial=0)][1:]
