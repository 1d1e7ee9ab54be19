"""Offline construction of the context index (ContextPilot, algorithm 4).

All contexts are known in advance. Clustering keeps merging the nearest pair, and each merge becomes
a node with the documents that its two sides share. From the root down, every node puts its parent's
documents first. Similar contexts therefore get a long common prefix.

There are two orders within a node. `by="id"` (ascending ids) is the order in the paper's examples.
`by="frequency"` begins with the documents that most contexts contain, which gives longer common
prefixes than hashed ids, whose order is arbitrary.

Pairs are compared in blocks of `BLOCK` contexts. A larger batch is sorted first, so that similar
contexts fall into one block; nodes of different blocks meet only at the root.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from laar.errors import SettingError
from laar_lab.offline.distance import ALPHA, distances
from laar_lab.offline.linkage import average_linkage
from laar_lab.offline.tree import ContextTree, Node, Reading

MAX_CONTEXTS = 200_000
"""Maximum number of contexts in one build; their nodes take about 1.5 GB."""

BLOCK = 4096
"""Maximum number of contexts compared pairwise. Matrices take 10 bytes per pair: here, 170 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A context of the batch: its documents in the best order, and its leaf's search path."""

    docs: tuple[int, ...]
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The index, and the contexts in their original order."""

    tree: ContextTree
    contexts: tuple[Ordered, ...]


def build(
    contexts: Sequence[Sequence[int]],
    *,
    alpha: float = ALPHA,
    by: Literal["id", "frequency"] = "frequency",
    reading: Reading = Reading.PAPER,
) -> Built:
    """Cluster a batch.

    Args:
        contexts: documents of each request in retrieval order, without duplicates.
        alpha: weight of the positions in the distance.
        by: order of documents within a shared prefix.
        reading: rules for later searches in the tree.

    Raises:
        SettingError: there are more than `MAX_CONTEXTS` contexts.
    """
    if len(contexts) > MAX_CONTEXTS:
        text = f"{len(contexts)} contexts in one batch; {MAX_CONTEXTS} is the most, split it"
        raise SettingError(text)
    leaves = _leaves(contexts)
    counts = Counter(doc for context in contexts for doc in context)
    first_seen = {doc: i for i, doc in enumerate(counts)}
    rank = {
        doc: (-counts[doc], first_seen[doc]) if by == "frequency" else (0, doc) for doc in counts
    }
    nodes: list[Node] = []
    for block in _blocks(contexts, rank):
        nodes += _merge([contexts[i] for i in block], [leaves[i] for i in block], rank, alpha)
    root = _root(nodes)
    _align(root)
    tree = ContextTree(root, alpha=alpha, reading=reading)
    ordered = tuple(Ordered(docs=tuple(leaf.docs), path=tuple(leaf.path())) for leaf in leaves)
    return Built(tree=tree, contexts=ordered)


def _blocks(
    contexts: Sequence[Sequence[int]], rank: dict[int, tuple[int, int]]
) -> list[Sequence[int]]:
    """Split a batch that is too large for one matrix, keeping similar contexts together.

    Each context's documents are sorted by rank, and the contexts by these lists, so that contexts
    with the same frequent documents are adjacent. Equal sets of documents stay together unless
    there are more than a block can hold.
    """
    if len(contexts) <= BLOCK:
        return [range(len(contexts))]
    keys = [sorted(map(rank.__getitem__, context)) for context in contexts]
    order = sorted(range(len(contexts)), key=keys.__getitem__)
    blocks: list[Sequence[int]] = []
    start = 0
    while start < len(order):
        end = min(start + BLOCK, len(order))
        while end < len(order) and keys[order[end]] == keys[order[end - 1]] and end > start + 1:
            end -= 1
        if end == start + 1 and len(order) - start > BLOCK:  # more equal sets than a block can hold
            end = start + BLOCK
        blocks.append(sorted(order[start:end]))
        start = end
    return blocks


def _leaves(contexts: Sequence[Sequence[int]]) -> list[Node]:
    """Return a leaf for each context; equal sets of documents share a leaf."""
    known: dict[frozenset[int], Node] = {}
    leaves: list[Node] = []
    for context in contexts:
        leaf = known.get(frozenset(context))
        if leaf is None:
            leaf = known[frozenset(context)] = Node(docs=list(context))
        else:
            leaf.frequency += 1
        leaves.append(leaf)
    return leaves


def _merge(
    contexts: Sequence[Sequence[int]],
    leaves: list[Node],
    rank: dict[int, tuple[int, int]],
    alpha: float,
) -> list[Node]:
    """Build the tree; return all nodes, leaves first, then inner nodes in order of their merges."""
    clusters = list(leaves)
    nodes = list(dict.fromkeys(leaves))
    whole = set(nodes)
    inner: dict[frozenset[int], Node] = {}
    for low, high, away in average_linkage(distances(contexts, alpha)):
        left, right = clusters[low], clusters[high]
        if left is right:
            clusters.append(left)
            continue
        shared = frozenset(left.docs).intersection(right.docs)
        node = inner.get(shared)
        if not shared or node is None or _under(node, left) or _under(node, right):
            node = Node(docs=sorted(shared, key=rank.__getitem__), frequency=0, away=away)
            inner[shared] = node
            nodes.append(node)
        for child in (left, right):
            _detach(child)
            node.adopt(child)
            node.frequency += child.frequency
        clusters.append(node)
    return [node for node in nodes if node.children or node in whole]


def _detach(node: Node) -> None:
    """Detach a shared node from the parent that an earlier merge gave it."""
    parent = node.parent
    if parent is not None:
        parent.children.remove(node)
        node.parent = None
        if not parent.children:
            _detach(parent)


def _under(node: Node, top: Node) -> bool:
    """Return whether `node` is at or below `top`, so that `top` can't be attached to it."""
    at: Node | None = node
    while at is not None and at is not top:
        at = at.parent
    return at is top


def _root(nodes: list[Node]) -> Node:
    """Remove the nodes that share nothing and return the root."""
    for node in reversed(nodes):
        if node.children and not node.docs:
            if node.parent is not None:
                node.parent.children.remove(node)
            for child in node.children:
                child.parent = None
                if node.parent is not None:
                    node.parent.adopt(child)
            node.children = []
    tops = [node for node in nodes if node.parent is None and node.docs]
    if len(tops) == 1 and (tops[0].children or tops[0].frequency > 1):
        return tops[0]
    root = Node(docs=[], frequency=sum(node.frequency for node in tops))
    for node in tops:
        root.adopt(node)
    return root


def _align(root: Node) -> None:
    """Order documents from the root down, so that each node's documents begin with its parent's."""
    queue = deque(root.children)
    while queue:
        node = queue.popleft()
        assert node.parent is not None
        taken = set(node.parent.docs)
        node.docs = node.parent.docs + [doc for doc in node.docs if doc not in taken]
        queue.extend(node.children)
