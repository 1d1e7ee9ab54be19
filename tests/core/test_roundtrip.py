"""The smoothed round trip: outliers are clipped, and missing values stay unknown."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.core.roundtrip import STALE_AFTER_S, fresh_rtt, smooth_rtt
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost
from laar_lab.sim.fleet import (
    Arrival,
    FleetSettings,
    LinkProfile,
    Prompt,
    Site,
    VirtualFleet,
    replay_open,
    request_of,
    spread,
)

ENGINE = EngineProfile(
    name="linear",
    cost=LinearCost(seconds_per_token=2.5e-5, decode_s_per_token=0.01),
    settings=EngineSettings(num_blocks=100_000, max_num_batched_tokens=100_000),
)


def after(samples_s: list[float], start_s: float = math.nan) -> float:
    for sample_s in samples_s:
        start_s = smooth_rtt(start_s, sample_s)
    return start_s


def test_one_spike_of_545_ms_moves_a_mean_of_37_ms_by_less_than_25() -> None:
    assert smooth_rtt(0.037, 0.545) - 0.037 < 0.025


def test_a_lasting_change_in_either_direction_is_learned_in_ten_probes() -> None:
    assert after([0.456] * 10, 0.037) > 0.9 * 0.456
    assert after([0.037] * 10, 0.456) < 0.037 * 1.4


def test_a_mean_under_a_millisecond_still_learns() -> None:
    assert after([0.010] * 20, 0.0002) == pytest.approx(0.010, rel=0.01)


def test_jitter_does_not_move_the_mean() -> None:
    rng = random.Random(1)
    means, mean_s = [], math.nan
    for _ in range(3000):
        mean_s = smooth_rtt(mean_s, 0.279 * math.exp(rng.gauss(0, 0.1)))
        means.append(mean_s)
    # The standard error of this mean is 0.279 * 0.1 / sqrt(3000), under 1 ms.
    assert sum(means) / len(means) == pytest.approx(0.279 * math.exp(0.005), abs=0.003)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_a_mean_is_unknown_or_positive_for_any_samples(samples_s: list[float]) -> None:
    mean_s = after(samples_s)
    if any(0 < sample_s < math.inf for sample_s in samples_s):
        assert 0 < mean_s < math.inf
    else:
        assert math.isnan(mean_s)


def test_old_and_missing_means_are_unknown_instead_of_zero() -> None:
    now = 1000.0
    rtt_s = np.array([0.1, 0.2, math.nan, 0.3])
    measured_s = np.array([now - 1, now - STALE_AFTER_S, math.nan, now + 50])
    believed = fresh_rtt(rtt_s, measured_s, now)
    assert believed[[0, 3]].tolist() == [0.1, 0.3]
    assert np.isnan(believed[[1, 2]]).all()


@pytest.mark.parametrize(
    ("size", "rounds"),
    [(1000, 1), (16_000, 2), (40_000, 2), (80_000, 3), (160_000, 4), (400_000, 5)],
)
def test_a_body_takes_the_round_trips_that_linux_takes(size: int, rounds: int) -> None:
    """They were measured with Linux's TCP (cubic) over links with delays of .05 and .2 s."""
    fleet = VirtualFleet([Site(name="e:80", model="m", engine=ENGINE)], FleetSettings(), seed=1)
    prompt = Prompt(prompt_tokens=size // 4, output_tokens=2, blocks=spread(1, size // 64))
    request = request_of(1, Arrival(at_s=0.0, prompt=prompt))
    fleet.director.table.rtt_s[0], fleet.director.table.rtt_at[0] = 0.1, 0.0
    view = fleet.director.decide(request, 0.0).view
    assert view is not None
    assert view.wire_s[0] == pytest.approx(0.1 * (rounds + 1)), "and one to connect"


@pytest.mark.parametrize("rtt_s", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("tls", [False, True])
def test_first_tokens_of_long_prompts_far_away_come_when_predicted(rtt_s, tls):
    """Prompts of 80 KB, over connections that are open and over new ones."""
    link = LinkProfile(rtt_s=rtt_s, tls=tls)
    site = Site(name="e:80", model="m", engine=ENGINE, link=link)
    fleet = VirtualFleet([site], FleetSettings(), seed=1)
    load = [
        Arrival(
            at_s=at_s, prompt=Prompt(prompt_tokens=20_000, output_tokens=2, blocks=spread(n, 1250))
        )
        for n, at_s in ((1 << 20, 40.0), (2 << 20, 43.0), (3 << 20, 60.0))
    ]
    shares = []

    def ended(_arrival, exchange):
        predicted_s = exchange.decision.view.terms.all_ttft_s[0]
        shares.append(predicted_s / (exchange.first_s - exchange.sent_s))

    replay_open(fleet, load, ended, max_in_flight=1)
    assert len(shares) == 3
    assert all(0.8 < share < 1.25 for share in shares), shares
