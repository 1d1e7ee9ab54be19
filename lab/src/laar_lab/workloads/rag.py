"""Retrieval loads and a fleet of document caches, to measure what the context hook gains.

There are three seeded loads: `topic` (documents of one topic together, with some noise; the top
fifth of the documents get 57 % of accesses, as in NarrativeQA according to the paper's Figure 3),
`zipf` (independent documents without topics, which is pessimistic; s = 1.0 resembles MultihopRAG,
0.6 QASPER) and `disjoint` (nothing is shared).
`replay` sends a load through an aligner to endpoints that each have an `EngineCache`.

Decoding, queueing, prompts around the documents and documents of unequal size are not modeled.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from laar.context.aligner import OrderIndex

Load = list[list[int]]
"""Document ids of each request, best first."""

Routing = Literal["prefix", "round-robin"]


def topic(
    seed: int,
    *,
    requests: int = 2000,
    docs: int = 15,
    noise: int = 3,
    topics: int = 50,
    topic_docs: int = 20,
) -> Load:
    """Draw topics by Zipf(1), documents of a topic by rank^-0.8, and noise uniformly."""
    rng = np.random.default_rng(seed)
    live = list(range(topics))
    of_topics, of_docs = _weights(topics, 1.0), _weights(topic_docs, 0.8)
    return [_about(rng, live, of_topics, of_docs, docs, noise) for _ in range(requests)]


def _about(
    rng: np.random.Generator,
    live: Sequence[int],
    of_topics: npt.NDArray[np.float64],
    of_docs: npt.NDArray[np.float64],
    docs: int,
    noise: int,
) -> list[int]:
    """Draw a request about a live topic, by weights of topics and of a topic's documents."""
    topics, topic_docs = len(live), len(of_docs)
    about = live[int(rng.choice(topics, p=of_topics))]
    chosen = rng.choice(topic_docs, size=docs - noise, replace=False, p=of_docs)
    context = [int(doc) + about * topic_docs for doc in chosen]
    while len(context) < docs:
        any_of_all = int(rng.integers(topics * topic_docs))
        doc = live[any_of_all // topic_docs] * topic_docs + any_of_all % topic_docs
        if doc not in context:
            context.append(doc)
    rng.shuffle(context)
    return context


def zipf(seed: int, s: float, *, requests: int = 2000, docs: int = 15, pool: int = 1000) -> Load:
    """Draw requests of independent documents, by rank^-s without replacement."""
    rng = np.random.default_rng(seed)
    weights = _weights(pool, s)
    return [
        [int(doc) for doc in rng.choice(pool, size=docs, replace=False, p=weights)]
        for _ in range(requests)
    ]


def disjoint(*, requests: int = 2000, docs: int = 15) -> Load:
    """Return requests that share nothing."""
    return [list(range(i * docs, (i + 1) * docs)) for i in range(requests)]


def long_documents(
    seed: int,
    *,
    requests: int,
    documents: int,
    s: float = 0.9,
    passages: tuple[int, int] = (4, 24),
    others: int = 3,
) -> Load:
    """Draw requests with all passages of a document, by rank^-s, and up to `others` of others."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(*passages, size=documents, endpoint=True)
    starts = np.concatenate(([0], np.cumsum(lengths))).tolist()
    load = []
    for about in rng.choice(documents, size=requests, p=_weights(documents, s)).tolist():
        more = rng.integers(starts[-1], size=rng.integers(others, endpoint=True)).tolist()
        load.append([*range(starts[about], starts[about + 1]), *more])
    return load


class EngineCache:
    """An LRU prefix cache of one endpoint, in units of documents, all equally long.

    Nodes are chained hashes. A path is touched from its end to the root, so a parent is always at
    least as recent as its children and the oldest entry is a leaf.

    Args:
        capacity_docs: maximum number of nodes.
    """

    def __init__(self, capacity_docs: float) -> None:
        self._capacity_docs = capacity_docs
        self._nodes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, docs: Sequence[int]) -> int:
        """Return how many leading documents are cached."""
        return sum(1 for _ in takewhile(self._nodes.__contains__, self._path(docs)))

    def put(self, docs: Sequence[int]) -> int:
        """Cache a request's documents; return how many leading ones were already cached."""
        hit = self.match(docs)
        for node in reversed([*self._path(docs)]):
            self._nodes[node] = None
            self._nodes.move_to_end(node)
        while len(self._nodes) > self._capacity_docs:
            self._nodes.popitem(last=False)
        return hit

    @staticmethod
    def _path(docs: Sequence[int]) -> Iterator[int]:
        node = 0
        for doc in docs:
            yield (node := hash((node, doc)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a load.

    Args:
        hit: share of all documents sent that were found cached.
        skew: number of requests of the busiest endpoint, relative to the mean.
        endpoint: endpoint of each request.
        hits: number of leading documents that each request found cached.
    """

    hit: float
    skew: float
    endpoint: tuple[int, ...]
    hits: tuple[int, ...]


def replay(
    load: Load,
    *,
    endpoints: int,
    capacity_docs: int | None,
    reorder: bool,
    routing: Routing = "prefix",
    valve: float = 1.1,
    interval_s: float = 0.05,
) -> Replay:
    """Send a load, one request after another.

    Args:
        load: document ids of each request.
        endpoints: number of caches.
        capacity_docs: capacity of each cache; None for no limit.
        reorder: align each request with a single index for the fleet, as large as all caches.
        routing: ``prefix`` chooses the longest match among the endpoints that have had at most
            `valve` times their fair share (plus 5); ties go to the least loaded.
        valve: see `routing`.
        interval_s: seconds between two requests, for the index's clock.
    """
    whole = endpoints * capacity_docs if capacity_docs else 10**9
    caches = [
        EngineCache(math.inf if capacity_docs is None else capacity_docs) for _ in range(endpoints)
    ]
    index = OrderIndex(capacity_docs=whole)
    sent = [0] * endpoints
    chosen: list[int] = []
    hits: list[int] = []
    for i, context in enumerate(load):
        docs: Sequence[int] = hashed(context)
        if reorder:
            docs = [docs[at] for at in index.align(0, 0, docs, i * interval_s)]
        if routing == "prefix":
            limit = valve * i / endpoints + 5
            open_ = [e for e in range(endpoints) if sent[e] <= limit]
        else:
            open_ = [i % endpoints]
        tried = [(caches[e].match(docs), -sent[e], e) for e in open_]
        _, _, at = max(tried, key=lambda each: each[:2])
        hits.append(caches[at].put(docs))
        chosen.append(at)
        sent[at] += 1
        if reorder:
            index.insert(0, 0, docs, i * interval_s, endpoint=str(at))
    return Replay(
        hit=sum(hits) / max(1, sum(map(len, load))),
        skew=max(sent) * endpoints / max(1, len(load)),
        endpoint=tuple(chosen),
        hits=tuple(hits),
    )


def _weights(n: int, s: float) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.arange(1, n + 1, dtype=np.float64) ** -s
    weights /= weights.sum()
    return weights


def hashed(context: Sequence[int]) -> list[int]:
    """Return the ids that the hook uses: hashes, whose order says nothing about popularity."""
    return [xxhash.xxh3_64_intdigest(doc.to_bytes(8, "little")) for doc in context]
