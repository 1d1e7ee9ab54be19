"""The published score compared with a table computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar_lab.policies.gorgo import PUBLISHED_WEIGHTS, gorgo_score

# rtt_ms, uncached, queued, and the score with the weights 0.276 and 0.5
BY_HAND = [
    (37, 6000, 0, 6010.212),  # near, without the prefix, idle
    (279, 500, 8000, 4577.004),  # has the prefix, busy
    (456, 500, 0, 625.856),  # has the prefix, distant
    (37, 500, 300, 660.212),  # has the prefix, near, a little busy
]


def test_scores_match_a_calculation_by_hand() -> None:
    rtt_ms, uncached, queued, expected = np.array(BY_HAND, float).T
    scores = gorgo_score(rtt_ms, uncached, queued, **PUBLISHED_WEIGHTS)
    assert scores == pytest.approx(expected)
    assert int(scores.argmin()) == 2


@given(
    st.lists(
        st.tuples(*[st.floats(0, 1e5) for _ in range(3)]), min_size=1, max_size=8, unique=True
    ),
    st.sampled_from([0.25, 2.0, 1024.0]),
)
def test_scaling_every_term_scales_the_score(
    rows: list[tuple[float, float, float]], factor: float
) -> None:
    rtt_ms, uncached, queued = np.array(rows, float).T
    plain = gorgo_score(rtt_ms, uncached, queued, 0.276, 0.5)
    scaled = gorgo_score(rtt_ms * factor, uncached * factor, queued * factor, 0.276, 0.5)
    assert scaled == pytest.approx(plain * factor)


def test_an_unknown_round_trip_yields_an_unknown_score() -> None:
    one, unknown = np.array([1.0]), np.array([np.nan])
    assert np.isnan(gorgo_score(unknown, one, one, 1.0, 1.0)).all()
