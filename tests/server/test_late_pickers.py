"""A picker that gets no CPU time does not take its own delay for an engine's doing."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

import pytest
from bench.bench_useless import ANSWER_S, SHAPES, WORST, Fleet, constant, said, useful

from laar.health.lateness import TICK_S
from laar.plugins.shares import FairShares
from laar.server.fleet import FleetState
from support.grids import crossed

LAGS = {  # seconds until the next, and how long it is
    "never": lambda _rng: (1.0, 0.0),
    "often": lambda rng: (rng.expovariate(2.0), rng.expovariate(1 / 0.3)),
    "seldom": lambda rng: (rng.expovariate(0.5), rng.uniform(0.5, 3.0)),
    "nearly always": lambda rng: (rng.expovariate(100.0), rng.expovariate(5.0)),
}


class Lagging(Fleet):
    """A fleet whose picker reads what comes during a lag at its end, in order and all at once.

    Args:
        lags: draws them.
        stops: the machine that stops is the engines', too.
    """

    def __init__(self, behave, *, lags, stops=False, **options):
        super().__init__(behave, **options)
        self._lags, self._stops, self._drawn = lags, stops, random.Random(repr(options))
        self.looked = self.named = 0
        self._late_s = 0.0

    def run(self, seconds):
        self._until = self.now + seconds
        for event in (self._lag, self._tick):
            self._later(0.0, event)
        super().run(seconds)

    def _tick(self):
        self.picker.table.lateness.tick(self.now)
        if self.now < self._until:
            self._later(TICK_S, self._tick)

    def _lag(self):
        pause_s, lost_s = self._lags(self._drawn)
        self.now += lost_s
        if self.now < self._until:
            self._later(pause_s, self._lag)
        if self._stops:
            self._events = [(max(at, self.now), *rest) for at, *rest in self._events]
            heapq.heapify(self._events)

    def _begin(self, stream, answer, rest_s):
        self._late_s = self.now - self._due  # the engine is not
        super()._begin(stream, answer, rest_s)
        self._late_s = 0.0

    def _later(self, seconds, event):
        super()._later(seconds - self._late_s, event)

    def _look(self):
        super()._look()
        self.looked += len(self._specs)
        self.named += len(list(self.picker.director.plugins.get(FairShares).problems()))


@pytest.mark.long
@pytest.mark.parametrize("answer_s", [0.1, pytest.param(0.6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stops", [False, True], ids=["picker", "machine"])
@pytest.mark.parametrize(("shape", "lags"), crossed([*SHAPES], [*LAGS]))
def test_healthy_engines_are_neither_too_fast_nor_out(shape, lags, stops, answer_s, figure):
    def behave(question, rng):
        answer = useful(question, rng)
        return replace(answer, seconds=answer.seconds * answer_s / ANSWER_S)

    drawn = {"lags": LAGS[lags], "stops": stops, "shape": SHAPES[shape], "seed": len(lags)}
    fleet = Lagging([behave] * 10, rate_per_s=30.0, **drawn)
    fleet.run(20.0)
    wrong = (fleet.named + fleet.out) / fleet.looked
    figure(f"% of looks at a healthy engine that call it fast or failing, {lags}", 100 * wrong, "1")
    assert wrong <= 0.03


@pytest.mark.long
@pytest.mark.parametrize("lags", ["often", pytest.param("seldom", marks=pytest.mark.slow)])
def test_a_useless_engine_is_still_found(lags):
    text = constant(random.Random(lags))[1]

    def behave(question, rng):
        good = useful(question, rng)
        return replace(said(question, text(question, rng)), seconds=0.1 * good.seconds)

    fleet = Lagging([behave, *[useful] * 4], lags=LAGS[lags], seed=1, rate_per_s=30.0)
    fleet.run(20.0)
    assert fleet.share(since=10.0) <= WORST


@pytest.mark.parametrize("late_s", [0.0, 0.3, 2.5])
def test_a_probe_that_timed_out_while_the_picker_was_late_says_nothing(late_s):
    fleet = Fleet([useful] * 2)
    table, state = fleet.picker.table, FleetState(fleet.picker)
    for _ in range(3):
        table.lateness.tick(fleet.now)
        fleet.now += TICK_S + late_s
        state.round_trip("10.0.0.1:8000", None, fleet.now)
    table.lateness.tick(fleet.now)
    state.round_trip("10.0.0.1:8000", None, fleet.now)
    assert table.failures[0] == (0 if late_s else 4)
    state.round_trip("10.0.0.1:8000", math.inf, fleet.now)  # refused: nothing listens there
    assert table.failures[0] > 0
