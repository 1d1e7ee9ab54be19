"""The paper's context index as a tree, for searching and ordering (ContextPilot, sections 4, 5.1).

A node represents a prefix, a leaf a context of the batch. The paper's prose and its published
program differ; `Reading` chooses between them:

- ``PAPER``: among equally near children, the one that more contexts went through is chosen; if that
  is a tie too, the search stops. A context follows the found node only up to the first document
  that it lacks, because a prefix with gaps shares nothing with the cache.
- ``PROGRAM``: the first of equally near children is chosen. The search ends at a node whose first
  document the context lacks, but that node is still followed, without the missing documents.

A search costs O(fan-out * k) per level, and the root's fan-out grows with the number of topics.
This module is for batches and comparisons. The server uses `aligner.OrderIndex`, which learns new
orders, forgets old ones, and is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from laar_lab.offline.distance import ALPHA, distance


class Reading(Enum):
    """Which rules to apply where the paper is ambiguous."""

    PAPER = "paper"
    PROGRAM = "program"


@dataclass(slots=True, eq=False)
class Node:
    """A prefix (inner node) or a context that was sent (leaf).

    `docs` is the whole prefix, including the parents' documents; `away` is the distance at which
    clustering created the node; `frequency` counts the contexts that went through it.
    """

    docs: list[int]
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    frequency: int = 1
    away: float = 0.0

    def adopt(self, child: Node) -> None:
        """Append `child` to the children."""
        child.parent = self
        self.children.append(child)

    def path(self) -> list[int]:
        """Return the child indexes from the root to this node."""
        steps: list[int] = []
        node = self
        while node.parent is not None:
            steps.append(next(i for i, other in enumerate(node.parent.children) if other is node))
            node = node.parent
        return steps[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search; `node` is None if nothing overlaps.

    `has_prefix` tells whether the query contains the node's first document.
    """

    node: Node | None
    path: tuple[int, ...]
    overlap: int
    has_prefix: bool


class ContextTree:
    """The context index; `cluster.build` makes one from a batch."""

    def __init__(
        self,
        root: Node,
        *,
        alpha: float = ALPHA,
        reading: Reading = Reading.PAPER,
    ) -> None:
        self.root = root
        self._alpha = alpha
        self._reading = reading

    def search(self, docs: Sequence[int]) -> Found:
        """Return the node to follow, by greedy descent to the nearest child (algorithm 1)."""
        wanted = set(docs)
        node = self.root
        path: list[int] = []
        while (index := self._nearest(node, docs, wanted)) is not None:
            node = node.children[index]
            path.append(index)
            if node.docs[0] not in wanted:
                return self._found(node, path, wanted, has_prefix=False)
        if not path:
            return Found(node=None, path=(), overlap=0, has_prefix=False)
        return self._found(node, path, wanted, has_prefix=True)

    def order(self, docs: Sequence[int]) -> list[int]:
        """Return the documents in the best order (algorithm 2), without adding or losing any."""
        found = self.search(docs)
        return self._aligned(docs, found) if found.node is not None else list(docs)

    def _nearest(self, node: Node, docs: Sequence[int], wanted: set[int]) -> int | None:
        best: tuple[float, int] | None = None
        index: int | None = None
        tied = False
        for i, child in enumerate(node.children):
            if wanted.isdisjoint(child.docs):
                continue
            away = distance(docs, child.docs, self._alpha)
            key = (away, -child.frequency if self._reading is Reading.PAPER else 0)
            if best is None or key < best:
                best, index, tied = key, i, False
            elif key == best:
                tied = True
        return None if tied and self._reading is Reading.PAPER else index

    def _found(self, node: Node, path: list[int], wanted: set[int], *, has_prefix: bool) -> Found:
        overlap = len(wanted.intersection(node.docs))
        return Found(node=node, path=tuple(path), overlap=overlap, has_prefix=has_prefix)

    def _aligned(self, docs: Sequence[int], found: Found) -> list[int]:
        assert found.node is not None
        wanted = set(docs)
        head: list[int] = []
        for doc in found.node.docs:
            if doc in wanted:
                head.append(doc)
            elif self._reading is Reading.PAPER:
                break
        taken = set(head)
        return head + [doc for doc in docs if doc not in taken]
