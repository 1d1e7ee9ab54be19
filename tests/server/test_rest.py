"""An idle picker visits its endpoints less often; a busy one does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laar.core.decision import Completion
from laar.fleet.membership import EndpointSpec
from laar.request import Api, Request
from laar.server.runner import Runner
from laar.settings import load


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    path = tmp_path / "laar.yaml"
    endpoints = [{"address": "10.0.0.1:1", "models": ["m"]}]
    path.write_text(yaml.safe_dump({"endpoints": endpoints}))
    return Runner(load(path), seed=1)


async def test_visits_are_rare_while_nothing_is_in_flight(runner: Runner) -> None:
    picker, interval_s = runner.picker, runner.collectors.interval_s
    now = [100.0]
    picker.clock = lambda: now[0]
    picker.table.replace("test", [EndpointSpec(address="10.0.0.1:1", models=("m",))])
    assert interval_s(1.0, 60.0) == 5.0

    decision = picker.director.decide(Request(id="1", model="m", api=Api.CHAT), now[0])
    picker.director.settle(decision, Completion(status=200, cause="complete", latency_s=1.0))
    assert interval_s(1.0, 60.0) == 1.0, "a request has just been decided"
    now[0] += 11.0
    assert interval_s(1.0, 60.0) == 5.0

    picker.metrics.streams_open = 1
    assert interval_s(1.0, 60.0) == 1.0, "a request is held, or its answer continues"


async def test_no_reading_becomes_stale_because_of_longer_idle_intervals(runner: Runner) -> None:
    assert runner.collectors.interval_s(1.0, 3.0) == 1.5
    assert runner.collectors.interval_s(5.0, 3.0) == 5.0
