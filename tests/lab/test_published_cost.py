"""The published cost compared with the formulas of both papers, and with brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar_lab.policies.gorgo import gorgo_score
from laar_lab.policies.laar_paper import LaarPaper
from laar_lab.policies.published_cost import PublishedWeights, expected_time
from support.views import view_of

ARRAYS = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        *(
            st.lists(st.floats(low, high), min_size=n, max_size=n).map(np.array)
            for low, high in ((0, 1), (1e-6, 1e-3), (0, 1e5), (0, 1e6), (0.02, 1), (0, 3))
        )
    )
)


def terms(weights, rtt, c, uncached, queued, q, tried, base=0.0, in_flight=3.0):
    return expected_time(
        weights,
        rtt_s=rtt,
        base_s=np.full(len(rtt), base),
        seconds_per_token=c,
        uncached_tokens=uncached,
        queued_tokens=queued,
        in_flight=np.full(len(rtt), in_flight),
        probability=q,
        times_tried=tried,
    )


@given(ARRAYS)
def test_without_round_trip_and_cache_the_cost_is_the_laar_papers(arrays):
    rtt, c, tokens, queued, q, _ = arrays
    cost = terms(
        PublishedWeights(k_rtt=0.0, k_queue=0.7, k_delay=0.0, in_flight_tokens=0.0),
        rtt,
        c,
        tokens,
        queued,
        q,
        np.zeros(len(q)),
    ).cost_s
    assert np.allclose(cost, c * (tokens + 0.7 * queued) / q)


@given(ARRAYS)
def test_with_q_and_c_equal_to_one_the_cost_is_the_gorgo_papers(arrays):
    rtt, _, uncached, queued, _, _ = arrays
    one = np.ones(len(rtt))
    # The paper's unit is the token: k_rtt is 1,000 times its weight in tokens per millisecond.
    weights = PublishedWeights(k_rtt=276.0, k_queue=0.5, k_delay=0.0, in_flight_tokens=0.0)
    cost = terms(weights, rtt, one, uncached, queued, one, 0 * one).cost_s
    score = gorgo_score(rtt * 1000.0, uncached, queued, 0.276, 0.5)
    assert np.allclose(cost, score)


def test_the_policy_laar_paper_uses_a_static_q_without_decoding_or_caches() -> None:
    """The cost is c(m) * (T + 0.7 R) / Q * 100 ** tries."""
    view = view_of([900, 0, 0], [9, 0, 3], queued=[0.0, 100.0, 0.0], base_s=5.0)
    view.published = np.array([0.5, 0.6, 0.9])
    view.times_tried = np.array([0.0, 1.0, 2.0])
    view.cell = ("en", 4096, "qa")
    LaarPaper().score(view)
    assert view.terms is not None
    seconds = 4096 + 0.7 * np.array([0.0, 100.0, 0.0])
    assert view.terms.cost_s == pytest.approx(seconds / view.published * [1.0, 100.0, 10_000.0])
