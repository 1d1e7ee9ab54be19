"""The packaged artifact matches its fleet file."""

from __future__ import annotations

import pytest

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar_lab.measure_fleet import default_artifact, measure_fleet
from laar_lab.sim.answers import AccuracySurface

SURFACE = AccuracySurface.load()


@pytest.mark.slow
def test_the_committed_artifact_matches_the_generated_one() -> None:
    committed = parse_artifact(default_artifact(), source="laar-fleet.capability.json")
    made = measure_fleet(SURFACE).artifact
    assert committed.data_sha256 == made.data_sha256
    assert committed.models.keys() == made.models.keys()
    for name, model in made.models.items():
        theirs = committed.models[name]
        assert theirs.cells == model.cells
        # Coefficients are rounded; with another linear algebra library the last digit may differ.
        assert theirs.terms == pytest.approx(model.terms, abs=0.01)
        assert theirs.intercept == pytest.approx(model.intercept, abs=0.01)
        assert theirs.speed.model_dump() == pytest.approx(model.speed.model_dump())
        assert theirs.chars_per_token == model.chars_per_token
    assert committed.retry.difficulty == pytest.approx(made.retry.difficulty, abs=0.01)


def test_the_artifact_covers_the_fleet() -> None:
    """Fitted from 50 outcomes per cell, probabilities are within 3 x 0.07 of the surface."""
    capability = CapabilityModel(parse_artifact(default_artifact(), source="default"))
    models = tuple(SURFACE.models)
    gaps = []
    for language in SURFACE.languages:
        for length in SURFACE.lengths_tokens:
            row = capability.probabilities(models, Features(language, length, "kv-lookup"))
            true = [SURFACE.accuracy(model, language, length) for model in models]
            gaps += [abs(p - q) for p, q in zip(row, true, strict=True)]
    assert max(gaps) < 0.21
    assert sum(gaps) / len(gaps) < 0.06
    speeds = [SURFACE.models[model].seconds_per_token for model in models]
    assert capability.seconds_per_token(models) == pytest.approx(speeds)
