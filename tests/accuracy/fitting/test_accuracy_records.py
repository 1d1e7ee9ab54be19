"""Records of graded answers: all formats are read, bad entries are reported, tasks are inferred."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import numpy as np
import orjson
import pytest

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.fit import Fit, fit
from laar.accuracy.fitting.records import parse_records, read_records
from laar.accuracy.text import hashed, shares_of, task_table
from laar.errors import SettingError
from laar.protocol.prompt import PromptSpans
from laar_lab.evaluating import judge, questions_of, run_evaluate
from support.features import features_of

_WORDS = {
    "sums": "add apples plus minus how many coins left total 12 7 dollars price each",
    "poems": "write verse rhyme moon river love stanza gentle night dream song heart",
    "trivia": "who was the king city capital year war river country born discovered",
    "code": "def return function list loop error python class import value ( ) :",
}
_RIGHT = {
    "big": {"sums": 0.9, "poems": 0.5, "trivia": 0.7, "code": 0.6},
    "small": {"sums": 0.3, "poems": 0.8, "trivia": 0.4, "code": 0.5},
    "coder": {"sums": 0.5, "poems": 0.2, "trivia": 0.2, "code": 0.9},
}


def world(tasks: list[str], each: int, seed: int = 0) -> list[dict[str, object]]:
    rng = Random(seed)
    records = []
    for task in tasks:
        for number in range(each):
            words = [rng.choice(_WORDS[task].split()) for _ in range(14)]
            hard = rng.random()
            scores = {
                model: float(0.5 * rng.random() + 0.5 * hard < right[task])
                for model, right in _RIGHT.items()
            }
            question = f"{' '.join(words)} {seed}-{number}?"
            records.append({"task": task, "question": question, "scores": scores})
    rng.shuffle(records)
    return records


def lines(records: list[dict[str, object]]) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def fitted(records: list[dict[str, object]], hold_out: float = 0.0) -> Fit:
    read = parse_records([(lines(records), "records.jsonl")])
    made = fit(read.outcomes, created="2026-01-01", data_sha256=read.sha256, hold_out=hold_out)
    assert parse_artifact(made.artifact.dump(), source="x") == made.artifact
    return made


@pytest.fixture(scope="module")
def known() -> Fit:
    return fitted(world(["sums", "poems", "trivia", "code"], 150))


def test_questions_of_known_tasks_go_to_the_right_model_without_a_header(known: Fit) -> None:
    fresh = parse_records([(lines(world(["sums", "poems", "trivia", "code"], 100, 9)), "x")])
    figures = judge(known.artifact, questions_of(known.artifact, fresh.outcomes))
    gain = figures["laar"] - figures["best_single"]  # type: ignore[operator]
    told = figures["laar_task_told"] - figures["best_single"]  # type: ignore[operator]
    assert told > 0.1
    assert gain > 0.8 * told
    assert figures["ece"] < 0.06  # type: ignore[operator]
    assert set(figures["tasks"]) == {"sums", "poems", "trivia", "code"}  # type: ignore[call-overload]


def test_a_request_like_nothing_measured_gets_base_rates_nearer_to_one_half(
    known: Fit,
) -> None:
    capability = CapabilityModel(known.artifact)
    models = tuple(sorted(_RIGHT))
    asked = Features("en", 512)
    guess = capability.guess(asked, "Übersetze bitte folgenden Satz ins Niederländische")
    assert guess.features.task == "generic"
    row, _ = capability.guessed(models, guess)
    means = np.array([capability.measured_models[model].mean for model in models])
    assert row == pytest.approx((4 * means + 1) / 6, abs=0.05)


@pytest.mark.parametrize(
    "left_out",
    ["sums", *(pytest.param(task, marks=pytest.mark.slow) for task in ("poems", "code"))],
)
def test_a_request_of_an_ungraded_task_goes_to_the_best_single_model(left_out: str) -> None:
    tasks = [task for task in _RIGHT["big"] if task != left_out]
    made = fitted(world(tasks, 80))
    fresh = parse_records([(lines(world([left_out], 100, 9)), "x")])
    figures = judge(made.artifact, questions_of(made.artifact, fresh.outcomes))
    assert figures["laar"] >= figures["best_single"] - 0.02  # type: ignore[operator]


def test_a_lead_counts_only_up_to_its_lower_bound() -> None:
    tasks = np.array([[0.5, 0.9, 0.52], [0.8, 0.4, 0.7], [0.6, 0.5, 0.5]])
    table = task_table(tasks, np.full((3, 3), 100.0), 0)

    def best(*shares: float) -> int:
        return int(table.row(np.array(shares))[1].argmax())

    assert best(1.0, 0.0, 0.0) == 1
    assert best(0.6, 0.0, 0.0) == 1
    assert best(0.2, 0.0, 0.0) == 0  # as the task is more likely unknown
    assert best(0.0, 1.0, 0.0) == best(0.0, 0.0, 0.0) == 0
    tasks[0, 1] = 0.6
    # Four answers are too few to show a lead of 0.1.
    for counts, expected in ((1000.0, 1), (4.0, 0)):
        few = task_table(tasks, np.full((3, 3), counts), 0)
        assert few.row(np.array([1.0, 0.0, 0.0]))[1].argmax() == expected


def test_what_is_predicted_for_an_ungraded_task_is_right_as_often_on_tasks_drawn_alike() -> None:
    """Each task is all right or all wrong for a model, with a chance that differs by model."""
    rng = np.random.default_rng(0)
    chances = rng.random(8000)
    for graded in (2, 3, 8):
        tasks = (rng.random((graded, 8000)) < chances).astype(float)
        predicted, _ = task_table(tasks, np.full(tasks.shape, 1e9), 0).row(np.zeros(graded))
        ungraded = rng.random(8000) < chances
        for level in np.unique(predicted.round(6)):
            alike = np.abs(predicted - level) < 1e-6
            assert level == pytest.approx(ungraded[alike].mean(), abs=2 / alike.sum() ** 0.5)


def test_the_less_a_request_resembles_a_task_the_less_its_difficulty_counts() -> None:
    trust = np.array([0.01, 0.6, 0.8, 0.95, 0.999])
    log_odds = np.log(trust / (1 - trust))[:, None]
    shares = shares_of(log_odds, np.zeros(1), np.ones(1)).sum(axis=-1)
    assert shares == pytest.approx([0.0, 0.22, 0.67, 0.98, 1.0], abs=0.01)
    tasks = np.array([[0.8, 0.9, 0.7], [0.4, 0.3, 0.1]])
    table = task_table(tasks, np.full((2, 3), 1e9), 0)
    for share in shares:
        row, _ = table.row(np.array([share, 0.0]))
        assert row == pytest.approx(share * tasks[0] + (1 - share) * (tasks.sum(axis=0) + 1) / 4)


@pytest.mark.long
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_models_without_a_common_question_can_be_fitted(right: float) -> None:
    """This also works if all models are always right or always wrong, without a warning."""
    records = world(["sums", "poems", "trivia"], 25)
    for record in records:
        record["scores"] = {f"model of {record['task']}": right}
    capability = CapabilityModel(fitted(records).artifact)
    guess = capability.guess(Features("en", 512), "Übersetze das bitte")
    row, _ = capability.guessed(capability.models, guess)
    assert (row > 0.7).all() if right else (row < 0.3).all()


def test_a_named_task_takes_precedence_over_the_words(known: Fit) -> None:
    capability = CapabilityModel(known.artifact)
    words = "how many coins left total 12 7 dollars price each apples plus"
    told = capability.guess(Features("en", 512, "code"), words)
    assert told.shares is None
    assert told.features.task == "code"
    guessed = capability.guess(Features("en", 512), words)
    assert guessed.features.task == "sums"


def test_with_too_few_tasks_only_the_class_of_a_request_counts() -> None:
    artifact = fitted(world(["sums"], 60)).artifact
    assert artifact.text is None
    assert CapabilityModel(artifact).guess(Features("en", 512), "x").shares is None


def test_questions_used_in_the_fit_are_excluded_from_the_evaluation() -> None:
    records = world(["sums", "poems"], 100)
    made = fitted(records, hold_out=0.25)
    read = parse_records([(lines(records), "records.jsonl")])
    asked = questions_of(made.artifact, read.outcomes)
    assert asked.excluded + len(asked.tasks) == 200
    assert 25 < len(asked.tasks) < 75
    fit_on_all = fitted(records).artifact
    with pytest.raises(SettingError, match="fitted to 200 of them"):
        questions_of(fit_on_all, read.outcomes)


def test_models_and_scores_may_be_missing(known: Fit) -> None:
    records = world(["sums", "poems"], 60, 3)
    for at, record in enumerate(records):
        scores = record["scores"]
        assert isinstance(scores, dict)
        del scores[["big", "small", "coder"][at % 3]]
        scores["stranger"] = 1.0
        if at % 5 == 0:
            scores[next(iter(scores))] = None
    read = parse_records([(lines(records), "x")])
    figures = judge(known.artifact, questions_of(known.artifact, read.outcomes))
    assert figures["ignored_models"] == ["stranger"]
    for name in ("best_single", "laar", "laar_task_told", "oracle", "brier", "ece"):
        assert 0 <= figures[name] <= 1  # type: ignore[operator]


@pytest.mark.parametrize("form", ["jsonl", "gz", "array", "bom"])
def test_every_file_format_is_read(tmp_path: Path, form: str) -> None:
    records = world(["sums"], 5)
    data = lines(records)
    if form == "gz":
        data = gzip.compress(data)
    elif form == "array":
        data = orjson.dumps(records, option=orjson.OPT_INDENT_2)
    elif form == "bom":
        data = b"\xef\xbb\xbf" + data
    path = tmp_path / "records"
    path.write_bytes(data)
    assert len(read_records([path]).outcomes) == 15


def test_repeated_answers_to_one_text_are_separate_questions() -> None:
    rows = [
        {"model": "a", "task": "t", "prompt_tokens": 1000, "question": "Where?", "correct": right}
        for right in (True, False, 0.25)
    ]
    read = parse_records([(lines(rows), "x")])
    assert [outcome.right for outcome in read.outcomes] == [1.0, 0.0, 0.25]
    assert {outcome.prompt_tokens for outcome in read.outcomes} == {1000}


def test_bad_entries_are_reported_with_file_and_line() -> None:
    good = lines(world(["sums"], 4))
    bad = b'{"task":"t","question":"q","scores":{"a":2}}\n{"question":"q"}\nnot json\n'
    read = parse_records([(good + bad, "some.jsonl")])
    assert read.unreadable == 3
    assert [fault.split(": ")[0] for fault in read.faults] == [
        "some.jsonl:5",
        "some.jsonl:6",
        "some.jsonl:7",
    ]
    assert "scores.a" in read.faults[0]


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n", b"[]", b"[1,2]", b"{}", b"null", b"\xff\xfe", b'{"scores":{}}', b"[" * 9999],
)
def test_unrelated_files_are_rejected_by_name(data: bytes) -> None:
    with pytest.raises(SettingError, match=r"some\.json"):
        parse_records([(data, "some.json")])


def test_a_truncated_archive_is_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "torn.gz"
    path.write_bytes(gzip.compress(lines(world(["sums"], 50)))[:-20])
    with pytest.raises(SettingError, match=r"torn\.gz"):
        read_records([path])


def test_the_report_has_the_figures(known: Fit, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(known.artifact.dump())
    records = world(["sums", "code"], 50, 5)
    (tmp_path / "r.jsonl").write_bytes(lines(records))
    figures = tmp_path / "f.json"
    run_evaluate(tmp_path / "a.json", [tmp_path / "r.jsonl"], seed=0, json_file=figures)
    read = orjson.loads(figures.read_bytes())
    assert read["oracle"] >= read["laar"] >= read["best_single"] - 0.1
    assert "trade" not in read  # no model's speed was measured


def test_the_report_says_what_a_price_of_wrong_answers_buys(tmp_path: Path) -> None:
    speeds = {"big": 4.0, "small": 0.5, "coder": 1.0}
    graded = [
        {"task": one["task"], "question": one["question"], "model": model, "correct": score >= 0.5}
        | {"prompt_tokens": 50 * number, "seconds": speeds[model] * (1 + number / 50)}
        for number, one in enumerate(world(["sums", "code"], 40, 6))
        for model, score in dict(one["scores"]).items()
    ]
    (tmp_path / "r.jsonl").write_bytes(lines(graded))
    made = fit(
        read_records([tmp_path / "r.jsonl"]).outcomes, created="x", data_sha256="", hold_out=0.5
    )
    (tmp_path / "a.json").write_bytes(made.artifact.dump())
    figures = tmp_path / "f.json"
    run_evaluate(tmp_path / "a.json", [tmp_path / "r.jsonl"], seed=0, json_file=figures)
    trade = {
        (row["users"], row["choice"]): row for row in orjson.loads(figures.read_bytes())["trade"]
    }
    free, dear, best = trade[1, 0.0], trade[1, 1000.0], trade[1, "best single model"]
    assert free["answers_per_s"] > 2.0 * dear["answers_per_s"]
    assert dear["right"] > free["right"]
    assert dear["right"] >= best["right"]


@pytest.mark.parametrize(
    "text", ["", " ", "\x00", "\ud800", "é" * 9000, "東京は？" * 500, "a" * 10**6]
)
def test_hashes_of_any_text_have_bounded_shape_and_norm(text: str) -> None:
    row = hashed(text)
    assert row.shape == (8192,)
    assert 0 <= float(row @ row) <= 1.01


def test_an_entry_without_an_answer_is_accepted_among_others() -> None:
    nothing = {"task": "a", "question": "Who?", "scores": {}}
    unnamed = [{"model": "m", "correct": True, "tokens": tokens} for tokens in (100, 9000)]
    read = parse_records([(lines([*unnamed, nothing]), "r")])
    assert (len(read.outcomes), read.unreadable) == (2, 0)


def test_a_question_in_parts_has_the_same_class_as_when_serving() -> None:
    """For example, a document in one language is followed by a question in another."""
    parts = [{"type": "text", "text": text} for text in ("日本語の文書。" * 80, "Translate it.")]
    message = {"role": "user", "content": parts}
    spans = PromptSpans(b"")
    spans.message("user", parts)
    served = features_of(spans.question, 4000)
    read = parse_records([(lines([{"model": "m", "correct": True, "messages": [message]}]), "r")])
    (outcome,) = read.outcomes
    assert (
        (outcome.language, outcome.task) == (served.language, served.task) == ("en", "translation")
    )
    assert outcome.text == spans.question
    assert outcome.prompt_chars > 500
