"""Fleets, traces and sessions from sources other than the lab's own files."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import orjson
import pytest

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar_lab.experiments.lookups import (
    questions_of,
    sites_of,
)
from laar_lab.measure_fleet import measure_fleet
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.suite.real import CONVERSATIONS, day_chats

FLEET = {
    "lengths_tokens": [100, 500, 1000, 2048],
    "languages": ["en"],
    "difficulty_correlation": 0.5,
    "answer_tokens": 20,
    "models": {
        "fast": {
            "seconds_per_token": 3e-5,
            "decode_s_per_token": 0.005,
            "accuracy": {"en": [0.9, 0.9, 0.9, 0.8]},
        },
        "slow": {
            "seconds_per_token": 2e-4,
            "decode_s_per_token": 0.02,
            "accuracy": {"en": [0.98, 0.97, 0.96, 0.95]},
        },
    },
}


def written(path: Path, *entries: dict[str, object]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
    return path


@pytest.mark.parametrize(
    "faster", [100.0, *(pytest.param(times, marks=pytest.mark.slow) for times in (1.0, 4.0))]
)
def test_a_model_with_very_short_measured_times_gets_requests(faster: float) -> None:
    """The measured tenth of a second is the time of a complete answer, not its overhead."""
    surface = AccuracySurface.model_validate(FLEET)
    quicker = {
        name: model.model_copy(update={"decode_s_per_token": model.decode_s_per_token / faster})
        for name, model in surface.models.items()
    }
    surface = surface.model_copy(update={"models": quicker})
    known = CapabilityModel(measure_fleet(surface).artifact)
    fleet = VirtualFleet(
        sites_of(surface), FleetSettings(), seed=1, assessor=CapabilityAssessor(known)
    )
    asked = questions_of(surface, ("en", 100), 1, cached=False)
    answered = ask_until_correct(fleet, asked, concurrency=8)
    models = Counter(model for each in answered for model in each.models)
    assert models["fast"] > models["slow"]


def test_a_day_of_chats_without_ids_has_no_sessions(tmp_path: Path) -> None:
    entries = [
        {"timestamp": 1000 * n, "input_length": 30, "output_length": 5, "hash_ids": []}
        for n in range(6)
    ]
    written(tmp_path / CONVERSATIONS, *entries)
    chats = list(islice(day_chats(tmp_path, 2.0, Random(1), 60.0), 5))
    assert {arrival.session for arrival in chats} == {""}
