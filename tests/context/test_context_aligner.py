"""The online aligner compared with brute force, and its guarantees for any order."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.affinity import Affinity
from laar.context.aligner import OrderIndex
from laar_lab.workloads.rag import EngineCache
from support.exploring import examples

docs_st = st.lists(st.integers(1, 12), min_size=1, max_size=6, unique=True)
history_st = st.lists(docs_st, max_size=25)


def filled(history, **settings_):
    index = OrderIndex(**settings_)
    for i, docs in enumerate(history):
        index.insert(0, 0, docs, float(i))
    return index


def test_long_orders_that_differ_in_their_last_document_take_bounded_memory():
    tracemalloc.start()
    try:
        index = OrderIndex(capacity_docs=300)
        for last in range(300):
            index.insert(0, 0, [*range(1000, 2000), last], float(last))
        index.align(0, 0, [7], 300.0)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 786_432 + 300 * 900 + 100_000  # the counts of pairs, and the orders
    assert index.match(0, [*range(1000, 2000), 299]) == 1001


def prefixes(orders):
    return {tuple(order[:n]) for order in orders for n in range(1, len(order) + 1)}


@settings(max_examples=examples(150))
@given(history_st, docs_st)
def test_alignment_finds_the_longest_path_for_any_order_of_the_documents(history, docs):
    index = filled(history)
    held = prefixes(history)
    longest = max(
        next((n for n in range(len(docs), 0, -1) if tuple(p[:n]) in held), 0)
        for p in itertools.permutations(docs)
    )
    sent = [docs[i] for i in index.align(0, 0, docs, 30.0)]
    assert sorted(sent) == sorted(docs)
    assert index.match(0, sent) == longest
    assert not longest or tuple(sent[:longest]) in held


def test_ten_thousand_alignments_keep_all_guarantees():
    rng = random.Random(5)
    index = OrderIndex(capacity_docs=400)
    for i in range(10_000):
        docs = rng.sample(range(60), rng.randint(2, 9))
        sent = [docs[at] for at in index.align(0, 0, docs, i * 0.1)]
        assert sorted(sent) == sorted(docs)
        assert index.match(0, sent) >= index.match(0, docs)
        if i % 5 == 0:
            assert index.align(0, 0, sent, i * 0.1) == tuple(range(len(docs)))
        index.insert(0, 0, sent, i * 0.1)
    assert len(index) <= 400


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(docs_st, st.sampled_from("abc")), max_size=25), st.sampled_from("abc"))
def test_only_orders_last_sent_to_an_endpoint_are_forgotten(history, emptied):
    index = OrderIndex()
    live: dict[tuple[int, ...], str] = {}
    for docs, endpoint in history:
        index.insert(0, 0, docs, 0.0, endpoint=endpoint)
        live[tuple(docs)] = endpoint
    kept = [docs for docs, endpoint in live.items() if endpoint != emptied]
    index.forget(emptied)
    assert (len(index.orders), len(index)) == (len(kept), len(prefixes(kept)))
    for docs in live:
        expected = max((n for n in range(len(docs) + 1) if docs[:n] in prefixes(kept)), default=0)
        assert index.match(0, docs) == expected
    index.forget(emptied)
    assert len(index.orders) == len(kept)


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(docs_st, st.sampled_from("ab")), max_size=25), st.integers(0, 25))
def test_only_orders_not_sent_again_since_are_forgotten(history, before):
    index = OrderIndex()
    live: dict[tuple[int, ...], tuple[str, int]] = {}
    for now, (docs, endpoint) in enumerate(history):
        index.insert(0, 0, docs, float(now), endpoint=endpoint)
        live[tuple(docs)] = endpoint, now
    kept = [docs for docs, (endpoint, at) in live.items() if endpoint != "a" or at >= before]
    for _ in range(2):
        index.forget("a", before=float(before))
        assert (len(index.orders), len(index)) == (len(kept), len(prefixes(kept)))


def test_scopes_do_not_affect_each_other():
    rng = random.Random(1)
    alone, crowded = OrderIndex(), OrderIndex()
    for i in range(300):
        other = rng.sample(range(40), 6)
        crowded.insert(2, 2, other, float(i))
        docs = rng.sample(range(40), 6)
        results = [index.align(1, 1, docs, float(i)) for index in (alone, crowded)]
        assert results[0] == results[1]
        for index in (alone, crowded):
            index.insert(1, 1, [docs[at] for at in results[0]], float(i))


def test_the_number_of_scopes_is_bounded(monkeypatch):
    monkeypatch.setattr("laar.context.aligner.MAX_SCOPES", 3)
    index = OrderIndex()
    for scope in range(10):
        index.insert(scope, scope, [1, 2], 0.0)
    assert len(index.affinities) == 3


class TestAffinity:
    def test_documents_seen_together_outrank_an_unrelated_popular_one(self):
        affinity = Affinity()
        for i in range(60):
            affinity.observe([1, 2, 3], float(i))
            affinity.observe([7, 100 + i], float(i))
            affinity.observe([7, 200 + i], float(i))
        score, _ = affinity.likely([1, 2, 3, 7], 60.0)
        assert min(score[doc] for doc in (1, 2, 3)) > score[7]

    def test_the_score_is_independent_of_the_order_of_the_documents(self):
        affinity = Affinity()
        rng = random.Random(0)
        for _ in range(50):
            affinity.observe(rng.sample(range(30), 8), 0.0)
        docs = list(range(30))
        expected = affinity.likely(docs, 0.0)
        for _ in range(5):
            rng.shuffle(docs)
            assert affinity.likely(docs, 0.0) == expected

    def test_old_sightings_lose_weight(self, monkeypatch):
        monkeypatch.setattr("laar.context.affinity.HALF_LIFE_S", 10.0)
        affinity = Affinity()
        affinity.observe([1, 2], 0.0)
        affinity.observe([3, 4], 90.0)
        assert affinity.likely([1, 2, 3, 4], 90.0)[1] == {3, 4}

    @pytest.mark.parametrize("later", [1e3, 1e4, 1e7])
    def test_counts_stay_finite_after_any_time(self, later, monkeypatch):
        monkeypatch.setattr("laar.context.affinity.HALF_LIFE_S", 1.0)
        affinity = Affinity()
        for step in range(5):
            affinity.observe([1, 2, 3], step * later)
        scores, _ = affinity.likely([1, 2, 3], 4 * later)
        assert all(0.0 < score <= 1.0 for score in scores.values())


@settings(max_examples=examples(100))
@given(st.lists(docs_st, max_size=20), st.one_of(st.just(math.inf), st.integers(1, 20)))
def test_the_document_cache_is_an_lru_trie(load, capacity):
    cache = EngineCache(capacity)
    used: dict[tuple[int, ...], int] = {}
    for time, docs in enumerate(load):
        hit = next(n for n in range(len(docs), -1, -1) if not n or tuple(docs[:n]) in used)
        assert cache.match(docs) == cache.put(docs) == hit
        used.update({tuple(docs[:n]): time for n in range(1, len(docs) + 1)})
        while len(used) > capacity:
            leaves = [p for p in used if not any(q[: len(p)] == p and q != p for q in used)]
            del used[min(leaves, key=lambda path: (used[path], -len(path)))]
        assert len(cache) == len(used)
