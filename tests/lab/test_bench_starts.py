"""Unproven endpoints are tried, and speed alone brings a useless endpoint no more than chance."""

from __future__ import annotations

import pytest
from bench import bench_starts
from bench.bench_starts import REPORTED, Site, added, fresh, useless
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = st.integers(1000, 10**9)


@pytest.mark.long
@pytest.mark.parametrize("sites", [None, REPORTED], ids=["drawn", "beside a cheaper model"])
def test_most_requests_soon_go_to_the_fastest_endpoint(sites: list[Site] | None) -> None:
    shares = [fresh(seed, sites) for seed in range(6)]
    assert sum(soon >= 0.5 for soon, _ in shares) >= 3
    assert all(later >= 0.5 for _, later in shares)


@pytest.mark.long
@settings(max_examples=4)
@given(SEEDS)
def test_an_idle_replica_that_joins_a_busy_fleet_gets_a_request(seed: int) -> None:
    assert added(seed) >= 1


@pytest.mark.long
@settings(max_examples=4)
@given(
    seed=SEEDS,
    tokens=st.none() | st.integers(1, 60),
    at_once_s=st.floats(0.0005, 0.002),
    per_s=st.sampled_from((6.0, 30.0, 60.0)),
)
def test_an_endpoint_that_answers_at_once_gets_no_more_than_its_siblings(
    seed: int, tokens: int | None, at_once_s: float, per_s: float
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench_starts, "FORMS", {"drawn": lambda known: known and tokens})
        assert useless(seed, "drawn", at_once_s=at_once_s, per_s=per_s) <= 0.23
