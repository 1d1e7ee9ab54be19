"""The paper's algorithms, tested with its examples and the outputs of the published program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.notes import order_note
from laar.errors import SettingError
from laar_lab.offline import (
    ContextTree,
    Node,
    Reading,
    build,
    distance,
    distances,
    schedule,
)
from laar_lab.offline.cluster import MAX_CONTEXTS
from laar_lab.offline.linkage import average_linkage
from support.exploring import examples

A, B, C, D = [3, 5, 1, 7], [2, 6, 3, 5], [3, 5, 8, 9], [2, 6, 4, 0]
FIGURE_5 = [[2, 1, 3], [2, 6, 1], [4, 1, 0]]

contexts_st = st.lists(
    st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), min_size=1, max_size=14
)


class TestDistance:
    """Equation 1; vectors P1 and P2, and the table in section 2.2 of the note."""

    @pytest.mark.parametrize(
        ("a", "b", "alpha", "expected"),
        [
            (A, B, 0.0, 0.5),
            (B, C, 0.0, 0.5),
            (B, D, 0.0, 0.5),
            (A, B, 0.001, 0.502),
            (B, C, 0.001, 0.502),
            (B, D, 0.001, 0.5),
            (A, C, 0.001, 0.5),
            (A, D, 0.001, 1.0),
            (C, D, 0.001, 1.0),
            (A, B, 0.01, 0.52),
            ([1, 2, 3], [3, 2, 1], 0.001, 0.001333),
            ([1, 2], [1, 2, 3, 4], 0.001, 0.5),
            ([1], [2], 0.001, 1.0),
            ([], [1], 0.001, 1.0),
            ([1, 2, 3], [2], 0.001, 0.667667),
            ([4, 2], [4, 2], 0.001, 0.0),
            ([1, 1, 2], [1, 2], 0.001, 0.334333),
        ],
    )
    def test_the_published_distances_are_reproduced(self, a, b, alpha, expected):
        assert distance(a, b, alpha) == pytest.approx(expected, abs=1e-6)

    @settings(max_examples=examples(40))
    @given(contexts_st)
    def test_the_matrix_has_the_distance_of_each_pair(self, contexts):
        matrix = distances(contexts)
        for i, j in itertools.product(range(len(contexts)), repeat=2):
            expected = 0.0 if i == j else distance(contexts[i], contexts[j])
            assert matrix[i, j] == pytest.approx(expected, abs=1e-6)


def naive_average_linkage(matrix):
    """Return the heights of merges, with all cluster pairs computed again for each."""
    clusters = [[i] for i in range(len(matrix))]
    heights = []
    while len(clusters) > 1:
        pairs = itertools.combinations(range(len(clusters)), 2)
        height, i, j = min(
            (np.mean([matrix[a, b] for a in clusters[i] for b in clusters[j]]), i, j)
            for i, j in pairs
        )
        heights.append(height)
        clusters[i] += clusters.pop(j)
    return heights


class TestLinkage:
    @settings(max_examples=30)
    @given(st.integers(2, 11), st.integers(0, 10_000))
    def test_heights_match_a_merge_of_the_nearest_pairs(self, n, seed):
        points = np.random.default_rng(seed).random((n, 3))
        matrix = np.abs(points[:, None] - points).sum(-1).astype(np.float32)
        got = [height for _, _, height in average_linkage(matrix.copy())]
        assert got == pytest.approx(naive_average_linkage(matrix), abs=1e-4)

    def test_figure_5_merges_at_the_published_distances(self):
        merges = average_linkage(distances(FIGURE_5))
        assert [(a, b) for a, b, _ in merges] == [(0, 1), (2, 3)]
        assert [height for *_, height in merges] == pytest.approx([0.333833, 0.667167], abs=1e-6)

    def test_the_first_of_equally_near_pairs_is_merged_first(self):
        assert average_linkage(distances([[1, 2], [1, 3], [1, 4]]))[0][:2] == (0, 1)


# Table 2.2: input, reordered input (None if unchanged), search paths, schedule.
OFFLINE = {
    "V1": (FIGURE_5, [[1, 2, 3], [1, 2, 6], [1, 4, 0]], [[1, 0], [1, 1], [0]], [0, 1, 2]),
    "V2": (
        [[1, 2, 3], [3, 2, 1], [4, 5, 6]],
        [[1, 2, 3], [1, 2, 3], [4, 5, 6]],
        [[0], [0], [1]],
        [0, 1, 2],
    ),
    "V3": ([[1, 2], [3, 4], [5, 6]], None, [[0], [1], [2]], [0, 1, 2]),
    "V4": (
        [[1, 2, 3, 4], [2, 1], [9, 2, 1]],
        [[1, 2, 3, 4], [1, 2], [1, 2, 9]],
        [[0], [1, 0], [1, 1]],
        [1, 2, 0],
    ),
    "V5": (
        [[1, 2, 3], [7, 8, 9], [2, 1, 5], [8, 7, 4], [1, 2, 6]],
        [[1, 2, 3], [7, 8, 9], [1, 2, 5], [7, 8, 4], [1, 2, 6]],
        [[1, 1, 0], [0, 0], [1, 0], [0, 1], [1, 1, 1]],
        [0, 4, 2, 1, 3],
    ),
    "V6": ([A, B, C, D], None, [[0, 0], [1, 0], [0, 1], [1, 1]], [0, 2, 1, 3]),
    "V7": ([[5, 3, 4]], None, [[0]], [0]),
    "V8": ([[3, 1, 2], [1, 2, 3]], [[3, 1, 2], [3, 1, 2]], [[], []], [0, 1]),
    "V9": (
        [[1, 2, 3, 4, 5, 6, 7, 8], [8, 1]],
        [[1, 8, 2, 3, 4, 5, 6, 7], [1, 8]],
        [[0], [1]],
        [0, 1],
    ),
    "V10": ([[1, 2], [1, 3], [1, 4]], None, [[1, 0], [1, 1], [0]], [0, 1, 2]),
    "V11": (
        [[5, 1, 2, 3], [3, 2, 1, 6], [2, 1, 7, 8], [9, 1, 4, 0]],
        [[1, 2, 3, 5], [1, 2, 3, 6], [1, 2, 7, 8], [1, 9, 4, 0]],
        [[1, 1, 0], [1, 1, 1], [1, 0], [0]],
        [0, 1, 2, 3],
    ),
    "V12": ([[1], [1, 2], [1, 2, 3]], None, [[0], [1, 0], [1, 1]], [1, 2, 0]),
    "V13": ([[4, 3, 2, 1], [1, 2, 3, 4, 5]], [[1, 2, 3, 4], [1, 2, 3, 4, 5]], [[0], [1]], [0, 1]),
    "V14": (
        [[7, 1, 6, 2, 5, 3], [3, 4, 1, 8, 2, 9]],
        [[1, 2, 3, 7, 6, 5], [1, 2, 3, 4, 8, 9]],
        [[0], [1]],
        [0, 1],
    ),
}


class TestBuild:
    """Algorithm 4; vectors P3, P5, P10 and V1 to V14."""

    @pytest.mark.parametrize("name", OFFLINE)
    def test_the_published_tree_and_schedule_are_reproduced(self, name):
        contexts, reordered, paths, order = OFFLINE[name]
        built = build(contexts, by="id").contexts
        assert [list(context.docs) for context in built] == (reordered or contexts)
        assert [list(context.path) for context in built] == paths
        assert schedule([context.path for context in built]) == order

    def test_figure_5_nests_the_shared_documents(self):
        root = build(FIGURE_5, by="id").tree.root
        assert root.docs == [1]
        assert [child.docs for child in root.children] == [[1, 4, 0], [1, 2]]

    def test_users_with_equal_documents_get_the_order_of_the_first_one(self):
        built = build([[2, 1, 3], [3, 1, 2], [1, 3, 2]]).contexts
        assert {context.docs for context in built} == {(2, 1, 3)}

    @settings(max_examples=examples(80))
    @given(contexts_st, st.sampled_from(["id", "frequency"]))
    def test_no_document_is_added_or_lost_and_all_paths_lead_to_leaves(self, contexts, by):
        built = build(contexts, by=by)
        for context, ordered in zip(contexts, built.contexts, strict=True):
            assert sorted(ordered.docs) == sorted(context)
            node = built.tree.root
            for step in ordered.path:
                child = node.children[step]
                assert child.parent is node
                assert child.docs[: len(node.docs)] == node.docs
                node = child
            assert tuple(node.docs) == ordered.docs

    def test_frequent_documents_go_first_in_production_order(self):
        built = build([[8, 3, 5], [8, 3, 6], [8, 1, 2]], by="frequency").contexts
        assert [context.docs[0] for context in built] == [8, 8, 8]

    def test_an_empty_batch_and_an_empty_context_are_accepted(self):
        assert build([]).contexts == ()
        assert [context.docs for context in build([[], [1, 2]]).contexts] == [(), (1, 2)]

    def test_a_batch_above_the_limit_is_rejected_with_advice(self):
        with pytest.raises(SettingError, match="split"):
            build([[1]] * (MAX_CONTEXTS + 1))


class TestSearch:
    """Algorithm 1 in both readings; vectors P4, P6 and the search table."""

    @pytest.mark.parametrize(
        ("query", "path", "docs", "overlap", "has_prefix"),
        [
            ([2, 1, 4], (0,), [1, 4, 0], 2, True),
            ([1, 2, 9], (1, 0), [1, 2, 3], 2, True),
            ([0, 4, 1], (0,), [1, 4, 0], 3, True),
            ([6, 1, 2], (1, 1), [1, 2, 6], 3, True),
            ([9, 3, 2], (1,), [1, 2], 1, False),
        ],
    )
    def test_the_searches_of_the_published_program_are_reproduced(
        self, query, path, docs, overlap, has_prefix
    ):
        found = build(FIGURE_5, by="id", reading=Reading.PROGRAM).tree.search(query)
        assert found.node is not None
        assert (found.path, found.node.docs) == (path, docs)
        assert (found.overlap, found.has_prefix) == (overlap, has_prefix)

    @pytest.mark.parametrize("query", [[5, 7, 8], [3], [8, 5]])
    @pytest.mark.parametrize("reading", Reading)
    def test_contexts_without_shared_documents_do_not_match(self, query, reading):
        tree = build(FIGURE_5, by="id", reading=reading).tree
        assert tree.search(query).node is None
        assert tree.order(query) == query

    def test_the_more_frequent_of_equally_near_nodes_is_chosen_as_in_the_paper(self):
        # Vectors P4 and P6. The paper draws C4 as child 0; clustering makes it child 1 (note, 2.3).
        tree = build(FIGURE_5, by="id").tree
        found = tree.search([2, 1, 4])
        assert found.node is not None
        assert (found.path, found.node.docs) == ((1,), [1, 2])
        assert [tree.order(q) for q in ([2, 1, 4], [1, 2, 9], [5, 7, 8])] == [
            [1, 2, 4],
            [1, 2, 9],
            [5, 7, 8],
        ]

    def test_a_node_with_a_thousand_children_is_searched(self):
        root = Node(docs=[])
        for i in range(1200):
            root.adopt(Node(docs=[10 * i, 10 * i + 1, 10 * i + 2]))
        tree = ContextTree(root)
        assert tree.order([7, 5001, 5000]) == [5000, 5001, 7]


class TestSchedule:
    def test_figure_7_of_the_paper_is_reproduced(self):
        # C6, C3, C7, C8, with the paths as drawn in the paper, become C6, C8, C3, C7.
        assert schedule([[0, 0, 2], [0, 1], [1], [0, 0, 3]]) == [0, 3, 1, 2]

    def test_requests_without_a_path_form_a_group(self):
        assert schedule([[], [1, 0], [1], []]) == [0, 3, 1, 2]

    @given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=20))
    @settings(max_examples=examples(50))
    def test_every_request_is_scheduled_once_and_groups_stay_together(self, paths):
        order = schedule(paths)
        assert sorted(order) == list(range(len(paths)))
        firsts = [paths[i][0] if paths[i] else -1 for i in order]
        assert len([key for key, _ in itertools.groupby(firsts)]) == len(set(firsts))


class TestOrderNote:
    """Vectors P8 and P11."""

    def test_labels_are_listed_in_the_received_order(self):
        assert "[Doc_2] > [Doc_1] > [Doc_4]" in order_note(["Doc_1", "Doc_2", "Doc_4"], [1, 0, 2])

    def test_documents_without_labels_are_numbered_by_position(self):
        assert ": 2 > 1 > 3" in order_note([None, "b", "c"], [1, 0, 2])
