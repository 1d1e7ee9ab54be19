"""Fitting recovers the parameters behind outcomes, reports its limits, and survives bad files."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from statistics import NormalDist

import numpy as np
import pytest

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting import command
from laar.accuracy.fitting.command import run_fit
from laar.accuracy.fitting.evaluate import evaluate
from laar.accuracy.fitting.fit import Fit, fit
from laar.accuracy.fitting.outcomes import (
    MeasuredOutcome,
    by_query,
    dump_outcome,
    features_of_outcome,
)
from laar.accuracy.fitting.records import parse_records
from laar.accuracy.fitting.text import fit_text
from laar.errors import SettingError

NORMAL = NormalDist()
ACCURACY = {
    "strong": {("en", 4096): 0.95, ("en", 65536): 0.7, ("ja", 4096): 0.85, ("ja", 65536): 0.45},
    "weak": {("en", 4096): 0.8, ("en", 65536): 0.3, ("ja", 4096): 0.75, ("ja", 65536): 0.2},
    "odd": {("en", 4096): 0.5, ("en", 65536): 0.5, ("ja", 4096): 0.9, ("ja", 65536): 0.05},
}
C = {"strong": 2e-4, "weak": 5e-5, "odd": 1e-4}


def outcome(query: str, model: str, correct: bool | None, **given: object) -> MeasuredOutcome:
    row: dict[str, object] = {
        "query_id": query,
        "model": model,
        "correct": correct,
        "language": "en",
        "task": "qa",
        "prompt_chars": 16_000,
        "prompt_tokens": 4000,
        "latency_s": 1.0,
    }
    return MeasuredOutcome.model_validate(row | given)


def world(per_cell: int, correlation: float = 0.5, seed: int = 0) -> list[MeasuredOutcome]:
    rng = Random(seed)
    made = []
    for language, bucket in ACCURACY["strong"]:
        for number in range(per_cell):
            shared = rng.gauss(0, 1)
            tokens = bucket - rng.randrange(bucket // 3)
            for name, cells in ACCURACY.items():
                own = rng.gauss(0, 1)
                latent = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own
                ttft_s = 0.05 + C[name] * tokens * rng.lognormvariate(0, 0.05)
                made.append(
                    outcome(
                        f"{seed}-{language}-{bucket}-{number}",
                        name,
                        NORMAL.cdf(latent) < cells[language, bucket],
                        language=language,
                        prompt_tokens=tokens,
                        prompt_chars=tokens * 5,
                        ttft_s=ttft_s,
                        latency_s=ttft_s + 0.5,
                    )
                )
    return made


def fitted(outcomes: list[MeasuredOutcome]) -> Fit:
    made = fit(outcomes, created="2026-01-01", data_sha256="0" * 64)
    assert parse_artifact(made.artifact.dump(), source="x") == made.artifact
    return made


@pytest.fixture(scope="module")
def large() -> Fit:
    return fitted(world(400))


def test_the_fit_recovers_the_probabilities_behind_the_outcomes(large: Fit) -> None:
    capability = CapabilityModel(large.artifact)
    for name, cells in ACCURACY.items():
        for (language, bucket), expected in cells.items():
            row = capability.probabilities((name,), Features(language, bucket, "qa"))
            # With 400 outcomes, 3 standard errors of a share are at most 0.075.
            assert row[0] == pytest.approx(expected, abs=0.075)


def test_speed_and_characters_per_token_are_recovered(large: Fit) -> None:
    for name, model in large.artifact.models.items():
        assert model.speed is not None
        assert model.speed.seconds_per_token == pytest.approx(C[name], rel=0.02)
        assert 0.0 < model.speed.spread_s_per_token < 0.02 * C[name]
        assert model.speed.start_s == pytest.approx(0.05, abs=0.15)
        assert model.speed.fixed_s == pytest.approx(0.55, abs=0.15)
        assert model.chars_per_token == pytest.approx({"en": 5.0, "ja": 5.0})


def test_held_out_scores_agree_with_fresh_outcomes(large: Fit) -> None:
    fresh = evaluate(large.artifact, world(400, seed=9))
    for name, held_out in large.evaluation.models.items():
        assert held_out.brier == pytest.approx(fresh.models[name].brier, abs=0.03)
        assert held_out.auc == pytest.approx(fresh.models[name].auc, abs=0.05)
        assert held_out.calibration_error < 0.06
    assert large.artifact.models["odd"].held_out == large.evaluation.models["odd"]


def test_the_gain_over_the_best_model_alone_is_reported(large: Fit) -> None:
    outcomes = world(400, seed=9)
    said = evaluate(large.artifact, outcomes).worth
    numbers = re.search(
        r"On (\d+) .* (\d+)% of .* (\d+)%, after .* with (\w+) alone \((\S+) p", said
    )
    assert numbers is not None, said
    asked, chosen, alone, best, points = numbers.groups()
    assert int(asked) == len({each.query_id for each in outcomes})
    share = {
        model: np.mean([each.right for each in outcomes if each.model == model])
        for model in large.artifact.models
    }
    assert best == max(share, key=share.__getitem__)
    assert int(alone) == round(100 * share[best])
    assert abs(int(chosen) - int(alone) - int(points)) <= 1


def fast_and_slow() -> list[MeasuredOutcome]:
    """Return outcomes of a model ten times as fast as another, and correct 3 times out of 5."""
    made = []
    for number in range(300):
        tokens = 1000 + 37 * (number % 90)
        for name, right, slower in (
            ("fast", number % 5 < 3, 1),
            ("slow", number % 50 > 0, 10),
        ):
            ttft_s = slower * tokens * 1e-4
            times = {"ttft_s": ttft_s, "latency_s": ttft_s + 0.1 * slower}
            made.append(outcome(f"q{number}", name, right, prompt_tokens=tokens, **times))
    return made


def test_the_report_says_how_much_sooner_choosing_gives_correct_answers() -> None:
    outcomes = fast_and_slow()
    evaluation = evaluate(fitted(outcomes).artifact, outcomes)
    pairs = list(zip(outcomes[::2], outcomes[1::2], strict=True))
    seconds = {"fast": 0.0, "slow": 0.0}
    solved = 0
    for fast, slow in pairs:
        solved += bool(fast.correct or slow.correct)
        for first, second in ((fast, slow), (slow, fast)):
            if first.correct or second.correct:
                seconds[first.model] += first.latency_s
                seconds[first.model] += 0.0 if first.correct else second.latency_s
    shown = {name: f"{total / solved:.3g}" for name, total in seconds.items()}
    assert (
        f"For clients that ask another model after a wrong answer, a correct one takes "
        f"{shown['fast']} s, or {shown['slow']} s if slow is asked first."
    ) in evaluation.worth


def test_the_correlation_of_failures_improves_estimates_of_later_attempts(
    large: Fit,
) -> None:
    retry = large.artifact.retry
    assert retry.difficulty is not None
    assert retry.difficulty > 0.8
    capability = CapabilityModel(large.artifact)
    models, ignoring, given = capability.models, [], []
    for answers in by_query(world(400, seed=9)).values():
        first = answers[models[0]]
        if not first.correct:
            right = [answers[model].right for model in models[1:]]
            row = capability.probabilities(models, features_of_outcome(first))
            ignoring += [*(row[1:] - right) ** 2]
            given += [*(capability.given_failures(row, models, models[:1])[1:] - right) ** 2]
    assert len(given) > 100
    assert np.mean(given) < 0.97 * np.mean(ignoring)


@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_is_always_right_or_always_wrong_is_fitted(right: bool) -> None:
    outcomes = world(40)
    outcomes += [o.model_copy(update={"model": "same", "correct": right}) for o in outcomes[::3]]
    made = fitted(outcomes)
    row = CapabilityModel(made.artifact).probabilities(("same",), Features("en", 4096, "qa"))
    assert (row[0] > 0.95) if right else (row[0] < 0.05)
    assert made.artifact.models["same"].regularisation is None
    assert made.evaluation.models["same"].auc is None


def test_models_measured_on_different_queries_are_fitted() -> None:
    apart = [o.model_copy(update={"query_id": f"{o.model}{o.query_id}"}) for o in world(40)]
    made = fitted(apart)
    assert "no held-out question answered by all" in made.evaluation.worth


def test_questions_that_one_model_did_not_answer_are_not_compared() -> None:
    outcomes = [
        o.model_copy(update={"query_id": f"other {o.query_id}"}) if o.model == "odd" else o
        for o in world(40)
    ]
    assert "no held-out question answered by all" in fitted(outcomes).evaluation.worth


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ([outcome("q", "m", True)], "too few"),
        ([], "too few"),
        ([outcome(f"q{q}", "m", q % 3 > 0, task=f"t{q}") for q in range(1001)], "at most 1000"),
        (
            [outcome(f"{q}{at}", "m", True, language=f"l{at}") for at in range(300) for q in "ab"],
            r"chars_per_token: .* at most 256",
        ),
    ],
    ids=["one", "none", "tasks", "languages"],
)
def test_too_few_or_too_many_outcomes_are_rejected(
    outcomes: list[MeasuredOutcome], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        fit(outcomes, created="", data_sha256="")


@pytest.mark.long
def test_a_file_in_which_tasks_take_turns_is_fitted() -> None:
    outcomes = [
        outcome(f"q{q}", "m", q % 7 > 2, task=f"t{q % 5}", text=f"word{q % 5} {q} it")
        for q in range(100)
    ]
    text = fit_text(outcomes)
    assert text is not None
    assert len(text.tasks) == 5


def test_an_artifact_too_large_to_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, artifact = tmp_path / "outcomes.jsonl", tmp_path / "artifact.json"
    outcomes.write_bytes(b"".join(dump_outcome(each) for each in world(2)))
    artifact.write_bytes(b"earlier")
    monkeypatch.setattr(command, "MAX_ARTIFACT_BYTES", 1000, raising=False)
    with pytest.raises(SettingError, match=r"the limit is 1000: fit fewer"):
        run_fit([outcomes], out=artifact)
    assert artifact.read_bytes() == b"earlier"


GOOD = [outcome(f"q{n}", "m", n % 2 == 0) for n in range(10)]


def test_repeats_contradictions_and_missing_verdicts_are_counted() -> None:
    rows = [*GOOD, outcome("q0", "m", False), outcome("q1", "m", False), outcome("q2", "m", None)]
    read = parse_records([(b"".join(map(dump_outcome, rows)), "o.jsonl")])
    assert (len(read.outcomes), read.contradictions, read.unjudged) == (10, 1, 1)
    assert read.outcomes[0].correct is False


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\x00",
        b"[]",
        b'{"query_id": "q"}',
        dump_outcome(GOOD[0]).replace(b'"latency_s":1.0', b'"latency_s":NaN'),
        dump_outcome(GOOD[0]).replace(b'"latency_s":1.0', b'"latency_s":-1'),
        dump_outcome(GOOD[0]).replace(b'"latency_s":1.0', b'"latency_s":1e300'),
        dump_outcome(GOOD[0]).replace(b"4000", b"99999999999999999999"),
        dump_outcome(GOOD[0]).replace(b"true", b'"yes"'),
    ],
)
def test_lines_that_are_not_outcomes_are_skipped(line: bytes) -> None:
    first, *others = map(dump_outcome, GOOD[1:])
    data = b"".join((first, line.rstrip() + b"\n", *others))
    read = parse_records([(data, "o.jsonl")])
    assert (len(read.outcomes), read.unreadable) == (9, 1)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"nonsense\n" * 5])
def test_a_file_without_outcomes_is_rejected(data: bytes) -> None:
    with pytest.raises(SettingError):
        parse_records([(data, "o.jsonl")])


def test_the_artifact_never_replaces_the_outcomes(tmp_path: Path) -> None:
    outcomes, link = tmp_path / "outcomes.jsonl", tmp_path / "link"
    outcomes.write_bytes(b"".join(dump_outcome(each) for each in world(2)))
    link.symlink_to(outcomes)
    measured = outcomes.read_bytes()
    for out in (outcomes, link):
        with pytest.raises(SettingError, match="holds outcomes"):
            run_fit([outcomes], out=out)
    assert outcomes.read_bytes() == measured
