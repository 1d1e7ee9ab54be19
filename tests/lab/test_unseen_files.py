"""Fleets, traces and sessions from sources other than the lab's own files."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import orjson
import pytest

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar_lab.experiments import find_experiment
from laar_lab.experiments.laar_success import _evidence
from laar_lab.experiments.lookups import (
    CONTESTANTS,
    CellResult,
    questions_of,
    sites_of,
)
from laar_lab.measure_fleet import measure_fleet
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.suite.real import CONVERSATIONS, day_chats
from laar_lab.sweep import placed

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


@pytest.mark.slow
def test_remarks_refer_to_the_given_fleet(tmp_path: Path) -> None:
    models = FLEET["models"]
    assert isinstance(models, dict)
    accuracy = {name: {"accuracy": {"pt": [0.6 if name == "fast" else 0.9]}} for name in models}
    file = tmp_path / "fleet.yaml"
    file.write_bytes(
        orjson.dumps(
            FLEET
            | {"lengths_tokens": [500], "languages": ["pt"]}
            | {"models": {name: models[name] | accuracy[name] for name in models}}
        )
    )
    experiment = find_experiment("laar-ttca")
    scope = experiment.scope(2, quick=True, fleet=file)
    with placed(1):
        report = experiment.run(scope)
    experiment.judged(report, scope)
    told = " ".join(report.remarks)
    assert "500 tokens among 2" in told
    assert "each doubling" not in told  # as the fleet has only one length


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


def test_a_fleet_of_seven_models_may_need_seven_attempts() -> None:
    claims = find_experiment("laar-success").claims
    claim = next(claim for claim in claims if claim.name == "attempts-laar")
    for models, most, holds in ((7, 7, True), (7, 8, False), (2, 3, False), (5, 5, True)):
        run = CellResult(
            latencies_s=np.ones((1, 10)), attempts=np.array([most]), correct=np.array([False])
        )
        cell = ("en", 4096)
        evidence = _evidence({(c, cell): [run] for c in CONTESTANTS}, [cell], models)
        (value,) = evidence["attempts-laar"][""].ours
        assert (value <= claim.bound) == holds


def test_a_day_of_chats_without_ids_has_no_sessions(tmp_path: Path) -> None:
    entries = [
        {"timestamp": 1000 * n, "input_length": 30, "output_length": 5, "hash_ids": []}
        for n in range(6)
    ]
    written(tmp_path / CONVERSATIONS, *entries)
    chats = list(islice(day_chats(tmp_path, 2.0, Random(1), 60.0), 5))
    assert {arrival.session for arrival in chats} == {""}
