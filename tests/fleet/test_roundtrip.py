"""Round trips: late answers are no distance, far is far, and missing values stay unknown."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.fleet.roundtrip import STALE_AFTER_S, TIE_S, WINDOW, distance_of, distances
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
from support.engines import linear_engine

ENGINE = linear_engine(2.5e-5, 100_000)

RTTS = st.lists(st.floats(1e-4, 1.0) | st.just(math.nan), min_size=1, max_size=20)
STALL_S = 0.03
LATE = st.sampled_from(["never", "first", "once", "often", "jitter", "stalls"])


def sampled(distance_s, late, rng):
    """Return samples over a distance, with answers that are late for another reason."""
    first, once = late == "first", rng.randrange(WINDOW)
    found = []
    for at in range(WINDOW):
        sample_s = distance_s + rng.uniform(0.0003, 0.001)
        if (first and not at) or (late == "once" and at == once):
            sample_s += rng.choice((0.12, 1.0))
        elif late == "often":
            sample_s += 0.12 * (rng.random() < 0.3)
        elif late == "jitter":
            sample_s *= math.exp(rng.gauss(0.0, 0.1))
        elif late == "stalls":
            sample_s += rng.expovariate(1.0 / STALL_S)
        found.append(sample_s)
    return found


def believed(samples):
    rtt_s, jitter_s = zip(*map(distance_of, samples), strict=True)
    return distances(np.array(rtt_s), np.array(jitter_s), np.zeros(len(samples)), 0.0)


@given(st.lists(LATE, min_size=2, max_size=16), st.integers(0, 2**32))
def test_equal_distances_are_equal_however_late_some_answers_are(lates, seed):
    rng = random.Random(seed)
    found = believed([sampled(0.0, late, rng) for late in lates])
    assert np.ptp(found) < (2.0 * STALL_S if "stalls" in lates else 0.5 * TIE_S)


@given(st.lists(st.tuples(LATE, st.booleans()), min_size=2, max_size=16), st.integers(0, 2**32))
def test_a_far_region_is_far_however_late_some_answers_are(endpoints, seed):
    rng = random.Random(seed)
    found = believed([sampled(0.2 * is_far, late, rng) for late, is_far in endpoints])
    far = np.array([is_far for _, is_far in endpoints])
    assert (found[far] > 0.12).all()
    assert (found[~far] < (2.0 * STALL_S if ("stalls", False) in endpoints else 0.02)).all()


@given(st.floats(0.02, 0.3), st.floats(0.0, 0.2), st.integers(0, 2**32))
def test_regions_are_as_far_as_requests_take(rtt_s, jitter, seed):
    real_s = rtt_s * np.array([1.0, 2.0, 4.0])
    draws = np.exp(jitter * np.random.default_rng(seed).normal(size=(40, 3, WINDOW)))
    found = np.mean([believed(each) for each in real_s[:, None] * draws], axis=0)
    assert found == pytest.approx(real_s, rel=0.12, abs=TIE_S)
    spike_s = 5.0 * (np.arange(WINDOW) == seed % WINDOW)
    assert distance_of(rtt_s * draws[0, 0] ** 0.75 + spike_s)[0] < 2.0 * rtt_s  # jitter up to .15
    spell = rtt_s * draws[0, 0] ** 0.5 * np.where(np.arange(WINDOW) < seed % WINDOW, 1.9, 1.0)
    for samples_s in (spell, spell[::-1]):
        assert distance_of(samples_s)[0] > 0.8 * np.sort(samples_s)[:6].mean() - 0.02


def test_a_nearer_route_is_believed_soon_and_a_farther_one_after_a_window():
    assert distance_of([0.456] * (WINDOW - 7) + [0.037] * 7)[0] < 0.06
    assert [distance_of([0.037] * n + [0.456] * (12 - n))[0] for n in (1, 0)] == [0.037, 0.456]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_a_round_trip_is_unknown_or_positive_for_any_samples(samples_s):
    table = EndpointTable()
    table.replace("file", [EndpointSpec(address="e:80", models=("m",))])
    for at, sample_s in enumerate(samples_s):
        table.round_trip("e:80", sample_s, float(at))
    is_known = any(0 < sample_s < math.inf for sample_s in samples_s)
    assert (0 < table.rtt_s[0] < math.inf) if is_known else math.isnan(table.rtt_s[0])


@given(RTTS, st.floats(0.0, 0.1))
def test_a_tie_takes_no_more_than_the_jitter_and_keeps_the_order(rtts_s, jitter_s):
    rtt_s = np.array(rtts_s, float)
    found = distances(rtt_s, np.full(len(rtt_s), jitter_s), np.zeros(len(rtt_s)), 0.0)
    known = ~np.isnan(rtt_s)
    assert (np.isnan(found) == ~known).all()
    assert (found[known] <= rtt_s[known]).all()
    assert (rtt_s - found <= max(jitter_s, TIE_S) + 1e-9)[known].all()
    assert (np.diff(found[known][np.argsort(rtt_s[known])]) >= 0.0).all()


def test_old_and_missing_means_are_unknown_instead_of_zero() -> None:
    rtt_s = np.array([0.1, 0.2, math.nan, 0.3])
    measured_s = 1000.0 - np.array([1.0, STALE_AFTER_S, math.nan, -50.0])
    found = distances(rtt_s, np.zeros(4), measured_s, 1000.0)
    np.testing.assert_array_equal(found, [0.1, math.nan, math.nan, 0.3])


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
