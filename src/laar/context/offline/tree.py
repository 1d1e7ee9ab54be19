"""The paper's context index as a tree: search, order, insert, evict (ContextPilot, 4 and 5.1).

A node stands for a prefix, a leaf for a context that was sent; leaves own request ids, so that an
engine that reports ids gone prunes the tree. The paper's prose and its published program differ,
and a `Reading` names which one is meant:

- ``PAPER``: of equally near children the one that more contexts went through is taken; where that
  ties too the search stops. A context follows the found node only as far as it holds the node's
  documents without a gap, because a prefix with holes in it shares nothing with the cache.
- ``PROGRAM``: the first of equally near children is taken; a node whose first document is absent
  ends the search and is followed all the same, its missing documents left out.

A search costs O(fan-out * k) a level, and the root's fan-out grows with the number of topics. This
is the library for batches and comparisons. It grows with the batch and until its owner calls
`evict`; the server aligns with `aligner.OrderIndex`, which is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from laar.context.offline.distance import ALPHA, distance

__all__ = ["ContextTree", "Found", "Inserted", "Node", "Reading", "request_id"]


class Reading(Enum):
    """The rules that decide where the paper leaves a choice."""

    PAPER = "paper"
    PROGRAM = "program"


@dataclass(slots=True, eq=False)
class Node:
    """A prefix (inner) or a context that was sent (leaf).

    `docs` is the whole prefix, the parents' documents included; `away` is the distance at which
    clustering made the node; `frequency` counts the contexts that went through it.
    """

    docs: list[int]
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    frequency: int = 1
    away: float = 0.0
    requests: set[str] = field(default_factory=set)

    def adopt(self, child: Node, at: int | None = None) -> None:
        """Makes `child` a child, last or at an index."""
        child.parent = self
        self.children.insert(len(self.children) if at is None else at, child)

    def path(self) -> list[int]:
        """Child indexes from the root to here."""
        steps: list[int] = []
        node = self
        while node.parent is not None:
            steps.append(next(i for i, other in enumerate(node.parent.children) if other is node))
            node = node.parent
        return steps[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search; `node` is None when nothing overlaps.

    `has_prefix` is true when the node's first document is in the query.
    """

    node: Node | None
    path: tuple[int, ...]
    overlap: int
    has_prefix: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """A context as it is to be sent, and where its leaf went."""

    docs: tuple[int, ...]
    path: tuple[int, ...]


class ContextTree:
    """The index; `cluster.build` makes one from a batch, and `insert` grows one from nothing."""

    def __init__(
        self,
        root: Node | None = None,
        *,
        alpha: float = ALPHA,
        reading: Reading = Reading.PAPER,
    ) -> None:
        self.root = root or Node(docs=[])
        self._alpha = alpha
        self._reading = reading
        self._leaves: dict[str, Node] = {}

    def search(self, docs: Sequence[int]) -> Found:
        """The node to follow, by greedy descent to the nearest child (algorithm 1)."""
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
        """The documents as they are best sent (algorithm 2); none is added or lost."""
        found = self.search(docs)
        return self._aligned(docs, found) if found.node is not None else list(docs)

    def insert(self, docs: Sequence[int], request: str) -> Inserted:
        """Orders a context and adds it as the leaf of `request`."""
        found = self.search(docs)
        node = found.node
        leaf = Node(docs=self._aligned(docs, found) if node else list(docs), requests={request})
        if node is None:
            self.root.adopt(leaf)
        elif not found.has_prefix:
            (node.parent or self.root).adopt(leaf)
        elif node.children:
            node.adopt(leaf)
        else:
            self._split(node, leaf)
        self._leaves[request] = leaf
        up = leaf.parent
        while up is not None:
            up.frequency += 1
            up = up.parent
        return Inserted(docs=tuple(leaf.docs), path=tuple(leaf.path()))

    def own(self, leaf: Node, request: str) -> None:
        """Registers a request with a leaf that is in the tree."""
        leaf.requests.add(request)
        self._leaves[request] = leaf

    def evict(self, requests: Iterable[str]) -> int:
        """Prunes requests that an engine dropped, O(height) each; returns how many ids it knew."""
        known = 0
        for name in requests:
            leaf = self._leaves.pop(request_id(name), None)
            if leaf is None:
                continue
            known += 1
            leaf.requests.discard(request_id(name))
            node = leaf
            while not node.children and not node.requests and node.parent is not None:
                parent = node.parent
                parent.children.remove(node)
                node = parent
        if not self.root.children and not self.root.requests:
            self.root = Node(docs=[])
        return known

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

    def _split(self, old: Node, new: Node) -> None:
        """Puts a node with the common prefix above two leaves; identical ones become siblings."""
        shared = 0
        for a, b in zip(old.docs, new.docs, strict=False):
            if a != b:
                break
            shared += 1
        parent = old.parent or self.root
        if not shared or old.docs == new.docs or parent is old:
            parent.adopt(new)
            return
        at = parent.children.index(old)
        inner = Node(docs=old.docs[:shared], frequency=old.frequency)
        parent.children[at] = inner
        inner.parent = parent
        inner.adopt(old)
        inner.adopt(new)


_ENGINE_ID = re.compile(r"(?:cmpl-|chatcmpl-|batch-)?(req-[0-9a-f]{12})(?:-\d+)?(?:-[0-9a-f]+)?")


def request_id(name: str) -> str:
    """Our id inside the one an engine reports: vLLM puts a prefix before it and a suffix behind."""
    match = _ENGINE_ID.fullmatch(name)
    return match.group(1) if match else name
