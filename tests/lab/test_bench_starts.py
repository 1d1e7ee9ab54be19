"""Unproven endpoints are tried, and speed alone brings a useless endpoint no more than chance."""

from __future__ import annotations

import pytest
from bench import bench_starts
from bench.bench_starts import REPORTED, added, fresh, useless
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = st.integers(1000, 10**9)


@pytest.mark.long
def test_most_requests_go_to_the_fastest_endpoint_once_each_had_a_chance() -> None:
    # Of the requests 100 to 200: clients' answers must have explained its pace before.
    assert sum(fresh(seed) >= 0.5 for seed in range(10)) >= 9


@pytest.mark.long
@pytest.mark.xfail(
    strict=False,
    reason="another model is cheaper than the only sibling, so a held endpoint gets no requests "
    "whose answers could explain its pace",
)
def test_most_requests_go_to_the_fastest_endpoint_beside_a_cheaper_model() -> None:
    assert sum(fresh(seed, REPORTED) >= 0.5 for seed in range(5)) >= 4


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
