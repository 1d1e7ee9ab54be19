"""The director with a tuner: each decision uses one set of weights, and reports its outcome."""

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.core.interfaces import NoRoomError
from laar.core.policy import Policy
from laar.core.request import Api, Request
from laar.tuning.settings import TunerSettings
from laar.tuning.tuner import Tuner, Weights
from support.directors import director_of

BOUNDS = {"k_rtt": (0.02, 2.0), "k_queue": (0.02, 2.0)}
START = {"k_rtt": 1.0, "k_queue": 0.7}


class Recorder:
    """A fake tuner: counts versions up, and records the outcomes reported to it."""

    def __init__(self):
        self.asked = 0
        self.samples = []

    def weights(self, now):
        self.asked += 1
        return Weights(self.asked, {"k_rtt": float(self.asked)})

    def observe(self, sample, now):
        self.samples.append((sample, now))


def director(tuner, **settings):
    return director_of("10.0.0.1:80", "10.0.0.2:80", tuner=tuner, **settings)


def request(**fields):
    return Request(id="r", api=Api.CHAT, model="auto", spans=("x" * 400,), chars=400, **fields)


def test_each_decision_uses_its_own_weights():
    recorder = Recorder()
    d = director(recorder)
    decisions = [d.decide(request(), 0.0) for _ in range(3)]
    assert [decision.weights_version for decision in decisions] == [1, 2, 3]
    assert [decision.view.weights["k_rtt"] for decision in decisions] == [1.0, 2.0, 3.0]


def test_the_weights_reach_the_cost():
    d = director(Recorder())
    for address, rtt_s in (("10.0.0.1:80", 0.1), ("10.0.0.2:80", 0.3)):
        d.table.round_trip(address, rtt_s, 0.0)
    first, second = d.decide(request(), 0.0), d.decide(request(), 0.0)

    def farther(decision):
        terms = decision.view.terms
        return float(np.diff(terms.cost_s - terms.others_s)[0])

    # Two round trips, one of them to connect; seconds to the first token count twice.
    assert farther(first) == pytest.approx(2 * 2 * 0.2)
    assert farther(second) > 1.8 * farther(first)


def test_explanations_and_held_requests_consume_no_weights():
    recorder = Recorder()
    d = director(recorder)
    d.choose(request(), 0.0)
    with pytest.raises(NoRoomError):
        d.decide(request(), 0.0, room=lambda view: np.zeros(len(view.slots), bool))
    assert d.decide(request(), 0.0).weights_version == 1
    assert recorder.asked == 1


@pytest.mark.parametrize(
    ("end", "ok"),
    [
        (Completion(status=200, cause="complete", latency_s=2.0, ttft_s=0.5), True),
        (Completion(status=503, cause="complete", latency_s=2.0, ttft_s=0.5), False),
        (Completion(status=200, cause="reset", latency_s=2.0, ttft_s=0.5), False),
    ],
)
def test_the_end_of_a_request_is_reported_once_with_its_version(end, ok):
    recorder = Recorder()
    d = director(recorder)
    decision = d.decide(request(), 10.0)
    d.settle(decision, end)
    d.settle(decision, end)
    [(sample, now)] = recorder.samples
    assert (sample.version, sample.ttft_s, sample.e2e_s, sample.ok) == (1, 0.5, 2.0, ok)
    assert now == 12.0


def test_other_policies_and_shadow_and_opaque_requests_use_no_tuner():
    recorder = Recorder()
    d = director(recorder)
    for other in (request(policy="random"), request(shadow=True)):
        assert d.decide(other, 0.0).weights_version == 0
    opaque = Request(id="o", api=Api.OPAQUE, model="auto")
    assert d.decide(opaque, 0.0).weights_version == 0
    assert recorder.asked == 0


class Meddler:
    """A plug-in scorer that tries to change the weights of later decisions."""

    def score(self, view):
        for name in view.weights:
            view.weights[name] = 1e9
        return np.ones(len(view.slots))


def test_a_scorer_cannot_change_the_weights_of_the_tuner():
    tuner = Tuner(TunerSettings(bounds=BOUNDS, window=20), START)
    d = director(tuner, policy="meddling")
    d.policies["meddling"] = Policy(name="meddling", scorers=((Meddler(), 1.0),))
    seen = []
    # Covers windows of the incumbent and of candidates, and the wait between them.
    for _ in range(300):
        decision = d.decide(request(), 0.0)
        seen.append(decision.view.weights)
        d.settle(decision, Completion(status=200, cause="complete", latency_s=1.0, ttft_s=0.2))
    tuner.freeze()
    seen.append(d.decide(request(), 0.0).view.weights)
    windows = tuner.export()["windows"]
    assert {window["role"] for window in windows} == {"incumbent", "candidate"}
    assert tuner.export()["weights"] == START
    for weights in (*seen, *(window["weights"] for window in windows)):
        assert all(floor <= weights[name] <= cap for name, (floor, cap) in BOUNDS.items())
    assert d.degraded["scorer"] == len(seen)  # each attempt counts as an error of the plug-in
