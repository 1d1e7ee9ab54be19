"""A setting has one default, for a file that leaves it out, for the features and for the lab."""

from dataclasses import fields, is_dataclass

import pytest

from laar.context import ContextSettings
from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.flow.admission import FlowSettings
from laar.health import HealthSettings
from laar.protocol.stream import StreamSettings
from laar.settings import ContextRoute, Settings
from laar.sim.fleet import FleetSettings
from laar.tuning import TunerSettings
from support.other_settings import BASE

SETTINGS = Settings.model_validate(BASE)
PAIRS = [
    (StreamSettings(), SETTINGS.stream),
    (FlowSettings(), SETTINGS.flow.admission),
    (HealthSettings(), SETTINGS.health.breaker),
    (ContextSettings(), ContextRoute(name="any").hook),
    (DirectorSettings(), SETTINGS.routing.director),
    (CostWeights(), SETTINGS.routing.weights),
    (TunerSettings(bounds=SETTINGS.tuner.bounds), SETTINGS.tuner.climb),
]


DRIFTED = {
    "FleetSettings.sample_answers: 0.05, in a file 0.01",
}
"""Declared twice, and no longer the same."""


def differing(one, other):
    for field in (field for field in fields(one) if field.compare):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if is_dataclass(ours):
            yield from differing(ours, theirs)
        elif ours != theirs:
            yield f"{type(one).__name__}.{field.name}: {ours!r}, in a file {theirs!r}"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair[0]).__name__)
def test_a_setting_left_out_is_what_the_feature_begins_with(pair):
    assert set(differing(*pair)) <= DRIFTED


def test_the_lab_begins_with_the_settings_of_the_product():
    lab = {field.name: field.default for field in fields(FleetSettings)}
    told = f"FleetSettings.sample_answers: {lab['sample_answers']}, in a file 0.01"
    assert told in DRIFTED
    assert lab["prefix_bytes"] == SETTINGS.prefix.max_bytes
    assert lab["scrape_interval_s"] == SETTINGS.readings.scrape_interval_s
    assert lab["probe_interval_s"] == SETTINGS.readings.probe_interval_s
    assert FleetSettings().weights == SETTINGS.routing.weights
