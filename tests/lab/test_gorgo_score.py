"""The published score compared with a table computed by hand."""

import numpy as np
import pytest

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
