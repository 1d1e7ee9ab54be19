"""The running check of c(m)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from laar.accuracy import Drift, LatencyCheck


def check(
    true_s_per_token: float,
    samples: int = 400,
    noise: float = 0.1,
    queue: bool = True,
    change_to: float | None = None,
) -> Drift:
    rng = np.random.default_rng(1)
    latency = LatencyCheck({"m": 1e-4})
    for number in range(samples):
        c = change_to if change_to and number >= samples // 2 else true_s_per_token
        uncached = float(rng.integers(500, 65_536))
        queued = float(rng.integers(0, 100_000)) if queue else 0.0
        ttft_s = (0.02 + c * uncached + 0.7 * c * queued) * float(rng.lognormal(0, noise))
        assert latency.observe("m", uncached, queued, ttft_s)
    (drift,) = latency.report()
    return drift


@pytest.mark.parametrize("queue", [True, False])
def test_finds_the_slope_and_no_drift_where_there_is_none(queue: bool) -> None:
    drift = check(1e-4, queue=queue)
    assert drift.seconds_per_token == pytest.approx(1e-4, rel=0.1)
    assert not drift.drifted
    if queue:
        assert drift.queue_s_per_token == pytest.approx(0.7e-4, rel=0.1)
    assert drift.error_s_per_token is not None
    assert 0 < drift.error_s_per_token < 1e-5


@pytest.mark.parametrize("true", [2e-4, 0.6e-4])
def test_reports_a_model_that_is_faster_or_slower_than_measured(true: float) -> None:
    drift = check(true)
    assert drift.drifted
    assert drift.seconds_per_token == pytest.approx(true, rel=0.1)


def test_forgets_what_a_model_was() -> None:
    drift = check(1e-4, samples=6000, change_to=2e-4)
    assert drift.drifted
    assert drift.seconds_per_token == pytest.approx(2e-4, rel=0.1)


def test_claims_nothing_from_few_samples_or_for_a_model_never_measured() -> None:
    few = check(5e-4, samples=20)
    assert few.seconds_per_token is None
    assert not few.drifted
    latency = LatencyCheck({})
    for number in range(100):
        latency.observe("new", 1000.0 + number, 0.0, 1.0)
    (drift,) = latency.report()
    assert drift.measured_s_per_token is None
    assert not drift.drifted


@pytest.mark.parametrize(
    ("uncached", "queued", "ttft_s"),
    [
        (0, 0, 1),
        (-1, 0, 1),
        (math.nan, 0, 1),
        (1, -1, 1),
        (1, math.nan, 1),
        (1, math.inf, 1),
        (1, 0, 0),
        (1, 0, -1),
        (1, 0, math.nan),
        (1, 0, math.inf),
        (1, 0, 1e6),
        (1e9, 0, 1),
    ],
)
def test_samples_that_make_no_sense_are_ignored(
    uncached: float, queued: float, ttft_s: float
) -> None:
    latency = LatencyCheck({"m": 1e-4})
    assert not latency.observe("m", uncached, queued, ttft_s)
    assert (latency.refused, latency.report()) == (1, [])


def test_prompts_of_one_length_tell_nothing() -> None:
    latency = LatencyCheck({"m": 1e-4})
    for _ in range(50):
        latency.observe("m", 1000.0, 0.0, 0.3)
    (drift,) = latency.report()
    assert drift.seconds_per_token is None
    assert not drift.drifted


def test_a_model_that_is_first_seen_during_a_report_does_not_break_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`GET /models` is answered on another thread than the one that serves."""
    latency = LatencyCheck({})
    latency.observe("m", 1000.0, 0.0, 0.3)
    drift = LatencyCheck._drift

    def interrupted(self: LatencyCheck, model: str, sums: Any) -> Drift:
        self.observe(f"behind {model}", 1000.0, 0.0, 0.3)
        return drift(self, model, sums)

    monkeypatch.setattr(LatencyCheck, "_drift", interrupted)
    assert [each.model for each in latency.report()] == ["m"]
