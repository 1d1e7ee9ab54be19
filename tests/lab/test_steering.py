"""A climb that steers a director: weights for each decision, outcomes under their version."""

import random
from dataclasses import replace

import pytest

from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar_lab.climb.steering import steer
from laar_lab.climb.windows import Weights


class Recorder:
    """A climb that never climbs: version n, then n + 1, and a list of the outcomes it got."""

    def __init__(self):
        self.asked = 0
        self.samples = []

    def weights(self, now):
        self.asked += 1
        return Weights(self.asked, {"k_rtt": float(self.asked)})

    def observe(self, sample, now):
        self.samples.append((sample, now))


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def director(recorder):
    table = EndpointTable()
    table.replace("t", [EndpointSpec(address=f"10.0.0.{i}:80", models=("m",)) for i in (1, 2)])
    made = Director(table, build_policies(CostWeights()), DirectorSettings(), rng=random.Random(1))
    steer(made, recorder, lambda w: build_policies(replace(CostWeights(), **w)))
    return made


REQUEST = Request(id="r", api=Api.CHAT, model="auto", spans=("x" * 400,), chars=400)


def test_each_decision_is_priced_with_weights_of_its_own(director):
    for address, rtt_s in (("10.0.0.1:80", 0.1), ("10.0.0.2:80", 0.3)):
        director.table.round_trip(address, rtt_s, 0.0)
    apart_s = []
    for _ in range(3):
        terms = director.decide(REQUEST, 0.0).view.terms
        costs = terms.cost_s - terms.others_s
        apart_s.append(float(costs[1] - costs[0]))
    assert apart_s[1] > 1.8 * apart_s[0]
    assert apart_s[2] > 1.3 * apart_s[1]


@pytest.mark.parametrize(
    ("end", "ok"),
    [
        (Completion(status=200, cause="complete", latency_s=2.0, ttft_s=0.5), True),
        (Completion(status=503, cause="complete", latency_s=2.0, ttft_s=0.5), False),
        (Completion(status=200, cause="disconnect", latency_s=2.0, ttft_s=0.5), False),
    ],
)
def test_the_end_of_a_request_is_observed_once_under_its_version(director, recorder, end, ok):
    first, second = director.decide(REQUEST, 1.0), director.decide(REQUEST, 2.0)
    for decision in (second, second, first):
        director.settle(decision, end)
    assert [(s.version, s.ttft_s, s.e2e_s, s.ok, now) for s, now in recorder.samples] == [
        (2, 0.5, 2.0, ok, 4.0),
        (1, 0.5, 2.0, ok, 3.0),
    ]
