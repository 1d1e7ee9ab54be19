"""The tuner climbs on a trace to the best weights."""

from itertools import islice

from laar_lab.policies.published_cost import ExpectedTime, PublishedWeights
from laar_lab.sim.fleet import Arrival, FleetSettings, Prompt, Site, spread
from laar_lab.tuning.climb import repeated, tune
from laar_lab.tuning.tuner import Tuner, TunerSettings
from support.engines import linear_engine

INITIAL = {"k_rtt": 1.0, "k_queue": 0.5, "k_delay": 0.5}


def settings(max_windows):
    bounds = dict.fromkeys(INITIAL, (0.02, 2.0))
    return TunerSettings(bounds=bounds, window=20, max_windows=max_windows)


def trace(count, tokens=640):
    return [
        Arrival(
            at_s=0.05 * i,
            prompt=Prompt(
                prompt_tokens=tokens, output_tokens=4, blocks=spread(i % 5 << 20, tokens // 16)
            ),
        )
        for i in range(count)
    ]


def climb(arrivals, max_windows):
    engine = linear_engine(1e-4, 4096)
    return tune(
        lambda: arrivals,
        [Site(name=f"{name}:80", model="m", engine=engine) for name in ("a", "b")],
        FleetSettings(),
        settings(max_windows),
        INITIAL,
        lambda weights: ExpectedTime(PublishedWeights(**weights)),
        seed=1,
    )


def test_a_second_pass_follows_the_first_and_shares_no_prefixes_with_it():
    drawn = list(islice(repeated(lambda: trace(30), Tuner(settings(6), INITIAL)), 90))
    times = [arrival.at_s for arrival in drawn]
    assert times == sorted(times)
    passes = [drawn[at : at + 30] for at in (0, 30, 60)]
    for one in passes:
        assert len({tuple(arrival.prompt.blocks) for arrival in one}) == 5
    assert len({block for arrival in drawn for block in arrival.prompt.blocks}) == 3 * 5 * 40


def test_the_trace_is_repeated_until_the_windows_are_full():
    tuner = climb(trace(30), max_windows=6)
    assert tuner.frozen
    assert len(tuner.history) == 6


def test_the_result_is_the_best_weights_instead_of_the_last_tried():
    tuner = climb(trace(30), max_windows=8)
    won = [score.weights for score in tuner.history if score.outcome == "accepted"]
    assert tuner.best == (won[-1] if won else INITIAL)
