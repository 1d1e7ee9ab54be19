"""A picker at rest reads its endpoints' pages less often; one with work does not."""

from __future__ import annotations

from pathlib import Path

import yaml

from laar.core.decision import Completion
from laar.core.endpoints import EndpointSpec
from laar.core.request import Api, Request
from laar.server.picker import Picker
from laar.settings import load_settings

ENDPOINTS = {"endpoints": [{"address": "10.0.0.1:1", "models": ["m"]}]}


def test_pages_may_be_older_while_nothing_is_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "laar.yaml"
    path.write_text(yaml.safe_dump(ENDPOINTS))
    now = [100.0]
    picker = Picker(load_settings(path), seed=1, clock=lambda: now[0])
    picker.table.replace("test", [EndpointSpec(address="10.0.0.1:1", models=("m",))])
    assert picker.page_rest_s() == 5.0

    decision = picker.director.decide(Request(id="1", model="m", api=Api.CHAT), now[0])
    picker.director.settle(decision, Completion(status=200, cause="complete", latency_s=1.0))
    assert picker.page_rest_s() == 0.0, "it has just decided"
    now[0] += 11.0
    assert picker.page_rest_s() == 5.0

    picker.metrics.streams_open = 1
    assert picker.page_rest_s() == 0.0, "a request is held, or its answer goes on"


def test_at_rest_no_reading_goes_stale(tmp_path: Path) -> None:
    path = tmp_path / "laar.yaml"
    path.write_text(yaml.safe_dump({**ENDPOINTS, "routing": {"stale_s": 3.0}}))
    picker = Picker(load_settings(path), seed=1)
    assert picker.page_rest_s() == 1.5
