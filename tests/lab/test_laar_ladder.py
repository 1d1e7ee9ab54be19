"""The ladder runs on any fleet file, in any language, with one retry rule for every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from laar_lab.experiments.laar_ladder import run_one
from laar_lab.experiments.lookups import World
from laar_lab.kv_lookup import queries, solve
from laar_lab.measure_fleet import measure_fleet
from laar_lab.sim.answers import AccuracySurface

FLEET = {
    "lengths_tokens": [2048],
    "languages": ["ko", "xx"],
    "difficulty_correlation": 0.3,
    "answer_tokens": 20,
    "models": {
        "quick": {
            "seconds_per_token": 1e-4,
            "decode_s_per_token": 0.01,
            "accuracy": {"ko": [0.3], "xx": [0.5]},
        },
        "sound": {
            "seconds_per_token": 3e-4,
            "decode_s_per_token": 0.02,
            "accuracy": {"ko": [0.9], "xx": [0.9]},
        },
    },
}


def test_a_fleet_with_different_languages_does_not_beat_the_oracle(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(FLEET))
    surface = AccuracySurface.load(path)
    world = World(surface=surface, capability=measure_fleet(surface, per_cell=20).artifact)
    runs = {
        step: run_one(world, step, 2, False, False, 5)
        for step in ("least-loaded", "least-loaded, retry rule", "laar: Q by class")
    } | {"oracle": run_one(world, "oracle by question", 2, False, False, 5)}
    assert all(len(each.times) == 16 for each in runs.values())
    ours, oracle = runs["laar: Q by class"], runs["oracle"]
    assert oracle.restricted <= ours.restricted
    assert ours.within(1.0) >= runs["least-loaded"].within(1.0)
    # Both rules ask every model before they stop, in whatever order.
    rule = runs["least-loaded, retry rule"]
    assert np.isfinite(rule.times).sum() == np.isfinite(ours.times).sum()


def test_the_words_of_every_language_are_recognized() -> None:
    for query in queries(languages=["ko", "ru", "ar", "hi", "de", "x-y"], per_cell=1)[::5]:
        found = solve(query.prompt)
        assert found is not None
        assert (found.key, found.value, found.language) == (
            query.key,
            query.answer,
            query.language,
        )
