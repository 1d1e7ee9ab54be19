"""Records as others write them: ids, repeated answers, fractional scores, few answers."""

from __future__ import annotations

from random import Random

import numpy as np
import orjson
from artifacts import artifact, model

from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.judge import judge
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.questions import Asked, questions_of
from laar.accuracy.fitting.records import fingerprint, parse_records, question_of


def lines(*entries: dict[str, object]) -> bytes:
    return b"".join(orjson.dumps(entry) + b"\n" for entry in entries)


def outcomes_of(*entries: dict[str, object]) -> list[MeasuredOutcome]:
    return list(parse_records([(lines(*entries), "x")]).outcomes)


def test_ids_that_begin_again_with_each_task_name_other_questions() -> None:
    entries: list[dict[str, object]] = [
        {"id": n, "task": task, "question": f"{task} {n}?", "model": "a", "correct": True}
        for task in ("one", "two")
        for n in range(1, 6)
    ]
    assert len({outcome.query_id for outcome in outcomes_of(*entries)}) == 10
    for entry in entries:
        del entry["question"]
    assert len({outcome.query_id for outcome in outcomes_of(*entries)}) == 10


def test_a_question_keeps_its_id_under_another_number() -> None:
    entry: dict[str, object] = {"task": "one", "question": "Why?", "model": "a", "correct": True}
    first, second = (outcomes_of({**entry, "id": n})[0].query_id for n in (1, 2))
    assert first == second


def test_a_text_has_the_language_that_serving_sees() -> None:
    entry: dict[str, object] = {"task": "one", "model": "a", "correct": True, "language": "de"}
    assert outcomes_of({**entry, "question": "Warum?"})[0].language == "en"
    assert outcomes_of({**entry, "prompt_tokens": 9})[0].language == "de"


def samples(questions: int, each: int) -> list[dict[str, object]]:
    return [
        {"task": "one", "question": f"Question {n}?", "model": "a", "score": at / each}
        for n in range(questions)
        for at in range(each)
    ]


def test_repeated_answers_are_the_same_in_another_file_and_order() -> None:
    entries = samples(40, 3)
    ids = {outcome.query_id for outcome in outcomes_of(*entries)}
    assert len(ids) == 120
    other = {outcome.query_id for outcome in outcomes_of(*reversed(entries))}
    assert ids == other


def test_answers_to_one_question_are_held_back_together() -> None:
    fitted = fit(outcomes_of(*samples(60, 5)), created="x", data_sha256="x", hold_out=0.5).artifact
    asked = questions_of(fitted, outcomes_of(*samples(60, 5)))
    texts = {question_of(outcome.query_id) for outcome in outcomes_of(*samples(60, 5))}
    assert fitted.fitted_on is not None
    seen = fitted.fitted_on.fingerprints()
    fresh = [text for text in texts if fingerprint(text) not in seen]
    assert 10 < len(fresh) < 50
    assert asked.answers.sum() == 5 * len(fresh)


def test_fractional_scores_are_judged_as_they_are_fitted() -> None:
    entries: list[dict[str, object]] = [
        {"task": "one", "question": f"Question {n}?", "scores": {"a": 0.4, "b": 0.4}}
        for n in range(200)
    ]
    fitted = fit(outcomes_of(*entries), created="x", data_sha256="x", hold_out=0.2)
    assert fitted.evaluation.overall.brier < 0.001
    assert fitted.evaluation.overall.calibration_error < 0.02
    judged = judge(fitted.artifact, questions_of(fitted.artifact, outcomes_of(*entries)))
    attempts = judged["attempts"]
    assert isinstance(attempts, dict)
    assert attempts["second_after_failure"]["brier"] < 0.001


def test_a_model_with_a_few_right_answers_is_not_the_best_single_one() -> None:
    rng = Random(1)
    entries: list[dict[str, object]] = [
        {
            "task": "one",
            "question": f"Question {n}?",
            "scores": {"a": float(rng.random() < 0.6), "b": float(rng.random() < 0.5)}
            | ({"c": 1.0} if n < 5 else {}),
        }
        for n in range(300)
    ]
    fitted = fit(outcomes_of(*entries), created="x", data_sha256="x", hold_out=0.2).artifact
    judged = judge(fitted, questions_of(fitted, outcomes_of(*entries)))
    assert judged["best_single_model"] == "a"
    assert float(str(judged["best_single_in_hindsight"])) <= float(str(judged["oracle"]))


def test_the_accuracy_at_the_same_cost_is_no_gain_where_all_models_are_alike() -> None:
    """Of many prices one is lucky on the questions that it is judged by."""
    gains = []
    names = tuple(f"m-{size}b" for size in (3, 7, 8, 13, 32, 34, 70, 72))
    sizes = np.array([3.0, 7, 8, 13, 32, 34, 70, 72])
    cells = (("en", 512, "one", 300),)
    known = artifact({name: model(cells=cells) for name in names})
    for seed in range(12):
        rng = np.random.default_rng(seed)
        scores = (rng.random((200, 8)) < 0.5).astype(float)
        guessed = np.clip(0.5 + 0.05 * rng.standard_normal((200, 8)), 0.1, 0.9)
        asked = Asked(
            models=names,
            tasks=np.array(["one"] * 200),
            buckets=np.full(200, 512),
            scores=scores,
            answers=np.ones((200, 8)),
            squares=scores**2,
            untold=guessed,
            told=guessed,
            unlike=np.zeros(200, bool),
            costs={"billion_parameters": np.tile(sizes, (200, 1))},
            excluded=0,
            ignored=(),
        )
        costs = judge(known, asked)["costs"]
        assert isinstance(costs, dict)
        gains.append(costs["billion_parameters"]["accuracy_at_same_cost"] - 0.5)
    assert abs(float(np.mean(gains))) < 0.02
