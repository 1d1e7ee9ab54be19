"""The artifact is untrusted input, from which a table of probabilities is made."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.artifact import MAX_ARTIFACT_BYTES, TEXT_COLUMNS, parse_artifact
from laar.accuracy.capability import MAX_PROBABILITY, MIN_PROBABILITY, CapabilityModel
from laar.accuracy.features import Features
from laar.errors import SettingError
from support.artifacts import artifact, model
from support.exploring import examples

QA = Features("en", 4096, "qa")


def sigmoid(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def test_an_artifact_survives_a_round_trip_through_json() -> None:
    made = artifact({"a": model(0.5, {"language=en": 0.25})}, 1.5)
    assert parse_artifact(made.dump(), source="x") == made


def tampered(path: str, value: object) -> bytes:
    raw: Any = orjson.loads(artifact({"a": model(0.5, {"language=en": 0.25})}, 1.5).dump())
    *parents, last = path.split("/")
    target = raw
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    target[last] = value
    return orjson.dumps(raw)


ONE_TASK = {
    "task": "qa",
    "intercept": 0.0,
    "scale": 0.01,
    "weights": b64encode(bytes(TEXT_COLUMNS)).decode(),
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("models/a/intercept", 1e308),
        ("models/a/intercept", "0.5"),
        ("models/a/intercept", None),
        ("models/a/terms/language=en", 1e9),
        ("models/a/mean", 1.5),
        ("models/a/mean", -0.1),
        ("models/a/speed/seconds_per_token", 0),
        ("models/a/speed/seconds_per_token", -1e-4),
        ("models/a/speed/seconds_per_token", 1e300),
        ("fitted_on", {"held_out": 0.2, "questions": "abc"}),
        ("fitted_on", {"held_out": 0.2, "questions": "ä"}),
        ("models/a/cells/0/outcomes", -1),
        ("models/a/cells/0/bucket", 2**60),
        ("models/a/cells/0/bucket", 4096.5),
        ("models/a/chars_per_token/en", 0),
        ("models/a/surprise", 1),
        ("retry/difficulty", 7.0),
        ("retry/difficulty", -1.0),
        ("models", {}),
        ("models", []),
        ("text", {"tasks": [ONE_TASK]}),  # its spread between tasks would be NaN
    ],
)
def test_a_tampered_artifact_is_rejected_with_the_location_of_the_error(
    path: str, value: object
) -> None:
    with pytest.raises(SettingError) as fault:
        parse_artifact(tampered(path, value), source="cap.json")
    assert "cap.json" in str(fault.value)
    assert path.replace("/", ".").removesuffix(".en") in str(fault.value)


@pytest.mark.parametrize("name", ["artifact_schema", "features_schema"])
@pytest.mark.parametrize("theirs", [0, 2, "1", None])
def test_a_different_schema_is_rejected_with_both_versions_named(name: str, theirs: object) -> None:
    with pytest.raises(SettingError) as fault:
        parse_artifact(tampered(name, theirs), source="cap.json")
    assert f"{name} {theirs!r}" in str(fault.value)
    assert "reads 1" in str(fault.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"[" * 10_000])
def test_other_files_are_rejected(data: bytes) -> None:
    with pytest.raises(SettingError, match=r"cap\.json"):
        parse_artifact(data, source="cap.json")


def test_a_huge_file_is_rejected_without_reading_it() -> None:
    with pytest.raises(SettingError, match="the limit is"):
        parse_artifact(b" " * (MAX_ARTIFACT_BYTES + 1), source="cap.json")


def test_log_odds_are_the_sum_of_the_cells_terms() -> None:
    terms = {"language=en": 0.5, "language=en bucket=8192": 0.25, "bucket=4096": 9.0}
    cells = (("en", 4096, "qa", 50), ("en", 8192, "qa", 50))
    capability = CapabilityModel(artifact({"a": model(-1.0, terms, cells)}))
    row = capability.probabilities(("a",), Features("en", 8192, "qa"))
    assert row == pytest.approx([sigmoid(-1.0 + 0.5 + 0.25)])
    assert not row.flags.writeable


@pytest.mark.parametrize(("outcomes", "trust"), [(0, 0.0), (15, 0.5), (30, 1.0), (99, 1.0)])
def test_a_thin_cell_shrinks_to_the_mean_of_its_model(outcomes: int, trust: float) -> None:
    one = model(2.0, cells=(("en", 4096, "qa", outcomes),), mean=0.4)
    capability = CapabilityModel(artifact({"a": one}))
    expected = trust * sigmoid(2.0) + (1 - trust) * 0.4
    assert capability.probabilities(("a",), QA) == pytest.approx([expected])
    assert capability.evidence(("a",), QA) == outcomes


def test_an_unmeasured_length_uses_the_next_longer_bucket_or_the_longest() -> None:
    terms = {"bucket=4096": 1.0, "bucket=16384": -1.0}
    cells = (("en", 4096, "qa", 50), ("en", 16384, "qa", 50))
    capability = CapabilityModel(artifact({"a": model(0.0, terms, cells)}))
    got = {
        bucket: capability.probabilities(("a",), Features("en", bucket, "qa"))[0]
        for bucket in (4096, 8192, 16384, 131_072)
    }
    low, high = sigmoid(-1.0), sigmoid(1.0)
    assert got == pytest.approx({4096: high, 8192: low, 16384: low, 131_072: low})


def test_an_unmeasured_language_or_task_uses_the_mean_of_the_measured_ones() -> None:
    terms = {"language=en": 1.0, "task=code": 0.5}
    cells = tuple((lang, 4096, task, 50) for lang in ("en", "ja") for task in ("qa", "code"))
    capability = CapabilityModel(artifact({"a": model(0.0, terms, cells)}))
    by_language = capability.probabilities(("a",), Features("ko", 4096, "qa"))
    assert by_language == pytest.approx([(sigmoid(1.0) + sigmoid(0.0)) / 2])
    by_both = capability.probabilities(("a",), Features("ko", 4096, "generic"))
    assert by_both == pytest.approx([np.mean([sigmoid(x) for x in (0.0, 0.5, 1.0, 1.5)])])


def test_an_unknown_model_uses_the_mean_of_the_fleet_and_is_reported() -> None:
    capability = CapabilityModel(artifact({"a": model(1.0, c=1e-4), "b": model(-2.0, c=3e-4)}))
    row = capability.probabilities(("a", "new", "b"), QA)
    assert row[1] == pytest.approx((row[0] + row[2]) / 2)
    assert capability.evidence(("new",), QA) == 0
    assert capability.seconds_per_token(("a", "new", "b")) == pytest.approx([1e-4, 2e-4, 3e-4])
    assert capability.fixed_s(("a", "new")) == pytest.approx([1.0, 1.0])


def test_a_speed_with_an_error_above_one_half_is_ignored() -> None:
    wild = model(1.0, c=2.8e-3)
    assert wild.speed is not None
    speed = wild.speed.model_copy(update={"spread_s_per_token": 2.7e-3})
    wild = wild.model_copy(update={"speed": speed})
    capability = CapabilityModel(artifact({"a": model(1.0, c=1e-4), "wild": wild}))
    assert capability.unsure == ("wild",)
    assert capability.seconds_per_token(("a", "wild")) == pytest.approx([1e-4, 1e-4])
    assert dict(capability.measured_s_per_token) == {"a": 1e-4}
    assert capability.speed("wild").error > capability.speed("a").error


@pytest.mark.parametrize(("fixed_s", "timed"), [((0.0, 0.01), True), ((0.0, 0.0), False)])
def test_answer_times_count_as_measured_if_any_model_has_one(
    fixed_s: tuple[float, float], timed: bool
) -> None:
    models = {}
    for name, seconds in zip("ab", fixed_s, strict=True):
        plain = model(1.0)
        assert plain.speed is not None
        speed = plain.speed.model_copy(update={"fixed_s": seconds})
        models[name] = plain.model_copy(update={"speed": speed})
    capability = CapabilityModel(artifact(models))
    answers = [capability.speed(name).answer_s for name in "abc"]
    assert answers == (pytest.approx([*fixed_s, 0.005]) if timed else [None] * 3)


def test_each_failed_model_lowers_the_probabilities_of_the_others() -> None:
    capability = CapabilityModel(artifact({m: model(1.0) for m in "abc"}, 1.5))
    row = capability.probabilities(("a", "b", "c"), QA)
    assert row[0] == pytest.approx(sigmoid(1.0))
    given_b = capability.given_failures(row, ("a", "b", "c"), ("b",))
    assert given_b[0] == given_b[2] < sigmoid(1.0) - 0.1
    given_two = capability.given_failures(row, ("a", "b", "c"), ("b", "c", "b"))
    assert given_two[0] < given_b[0] - 0.05


@pytest.mark.long
@settings(max_examples=examples(100))
@given(
    intercept=st.floats(-50, 50),
    difficulty=st.floats(0, 6),
    tried=st.lists(st.sampled_from(["a", "b", "zz"]), max_size=70),
)
def test_probabilities_stay_within_their_bounds(
    intercept: float, difficulty: float, tried: list[str]
) -> None:
    fitted = artifact({"a": model(intercept, mean=1.0), "b": model(0.0)}, difficulty)
    capability, models = CapabilityModel(fitted), ("a", "b", "new")
    row = capability.given_failures(capability.probabilities(models, QA), models, tried)
    assert ((row >= MIN_PROBABILITY) & (row <= MAX_PROBABILITY)).all()
