"""Records from other sources may reuse ids, repeat answers, or have fractional scores."""

from __future__ import annotations

from collections import Counter
from random import Random

import orjson
import pytest

from laar.accuracy.fitting import text
from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.records import fingerprint, parse_records, question_of
from laar_lab.evaluating import Asked, fingerprints, judge, questions_of


def lines(*entries: dict[str, object]) -> bytes:
    return b"".join(orjson.dumps(entry) + b"\n" for entry in entries)


def outcomes_of(*entries: dict[str, object]) -> list[MeasuredOutcome]:
    return list(parse_records([(lines(*entries), "x")]).outcomes)


def test_ids_reused_in_another_task_are_different_questions() -> None:
    entries: list[dict[str, object]] = [
        {"id": n, "task": task, "question": f"{task} {n}?", "model": "a", "correct": True}
        for task in ("one", "two")
        for n in range(1, 6)
    ]
    assert len({outcome.query_id for outcome in outcomes_of(*entries)}) == 10
    for entry in entries:
        del entry["question"]
    assert len({outcome.query_id for outcome in outcomes_of(*entries)}) == 10


def test_a_text_has_the_same_language_as_when_serving() -> None:
    entry: dict[str, object] = {"task": "one", "model": "a", "correct": True, "language": "de"}
    assert outcomes_of({**entry, "question": "Warum?"})[0].language == "en"
    assert outcomes_of({**entry, "prompt_tokens": 9})[0].language == "de"


def samples(questions: int, each: int) -> list[dict[str, object]]:
    return [
        {"task": "one", "question": f"Question {n}?", "model": "a", "score": at / each}
        for n in range(questions)
        for at in range(each)
    ]


def test_all_answers_to_a_question_are_held_out_together() -> None:
    fitted = fit(outcomes_of(*samples(60, 5)), created="x", data_sha256="x", hold_out=0.5).artifact
    asked = questions_of(fitted, outcomes_of(*samples(60, 5)))
    texts = {question_of(outcome.query_id) for outcome in outcomes_of(*samples(60, 5))}
    assert fitted.fitted_on is not None
    seen = fingerprints(fitted.fitted_on)
    fresh = [text for text in texts if fingerprint(text) not in seen]
    assert 10 < len(fresh) < 50
    assert asked.answers.sum() == 5 * len(fresh)


def test_fractional_scores_are_judged_as_they_are_fitted() -> None:
    entries: list[dict[str, object]] = [
        {"task": "one", "question": f"Question {n}?", "scores": {"a": 0.4, "b": 0.4}}
        for n in range(200)
    ]
    fitted = fit(outcomes_of(*entries), created="x", data_sha256="x", hold_out=0.2)
    for held_out in fitted.evaluation.models.values():
        assert held_out.brier < 0.001
        assert held_out.calibration_error < 0.02
    judged = judge(fitted.artifact, questions_of(fitted.artifact, outcomes_of(*entries)))
    assert float(str(judged["brier"])) < 0.001


def test_a_model_with_only_a_few_correct_answers_is_not_the_best_single_model() -> None:
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
    assert float(str(judged["best_single"])) <= float(str(judged["oracle"]))


LENGTHS = (1000, 4000, 16000, 64000)


def ladder(form: str, tokens: int) -> list[dict[str, object]]:
    """Return 30 questions of one length for two models, in one of three formats."""
    entries: list[dict[str, object]] = []
    for n in range(30):
        common: dict[str, object] = {"task": "needle", "prompt_tokens": tokens}
        common |= {"id": n} if form == "id" else {"question": f"Where is needle {n}?"}
        if form == "scores":
            entries.append(common | {"scores": {"a": 1.0, "b": 0.0}})
        else:
            entries += [common | {"model": m, "correct": m == "a"} for m in ("a", "b")]
    return entries


@pytest.mark.parametrize("form", ["single", "scores", "id"])
@pytest.mark.parametrize("files", [1, 4])
def test_a_question_at_several_lengths_counts_once_per_length(form: str, files: int) -> None:
    parts = [lines(*ladder(form, tokens)) for tokens in LENGTHS]
    parts = parts if files == 4 else [b"".join(parts)]
    read = parse_records([(part, f"{at}") for at, part in enumerate(parts)])
    assert len(read.outcomes) == 2 * 30 * 4
    assert read.contradictions == 0
    by_question = Counter(outcome.query_id for outcome in read.outcomes)
    # For a question at one length, the answers of both models.
    assert set(by_question.values()) == {2}
    assert len({question_of(query_id) for query_id in by_question}) == 30


def test_rows_with_the_same_text_are_different_questions() -> None:
    """For example, the record may lack the documents that the questions are about."""
    entry: dict[str, object] = {"task": "one", "question": "Where?", "prompt_tokens": 1000}
    scores = ({"a": 1, "b": 0}, {"a": 0, "b": 0}, {"a": 1, "b": 0})
    read = outcomes_of(*(entry | {"scores": each} for each in scores))
    assert len(read) == 6
    assert set(Counter(outcome.query_id for outcome in read).values()) == {2}


def answers(seed: int, count: int) -> bytes:
    """Return answers to four questions about missing documents; one in ten is correct."""
    rng = Random(seed)
    return lines(
        *(
            {
                "task": "one",
                "question": f"Question {rng.randrange(4)}?",
                "prompt_tokens": 1000,
                "model": "a",
                "correct": rng.random() < 0.1,
            }
            for _ in range(count)
        )
    )


def test_answers_from_another_file_are_evaluated_even_if_they_look_alike() -> None:
    one, two = answers(1, 500), answers(2, 700)
    read = parse_records([(one, "one")])
    fitted = fit(read.outcomes, created="x", data_sha256="x", hold_out=0.2).artifact

    def judged(data: bytes) -> Asked:
        return questions_of(fitted, parse_records([(data, "x")]).outcomes)

    of_others = judged(two)
    assert of_others.answers.sum() == 700
    assert of_others.alike > 300
    kept_back = int(judged(one).answers.sum())
    assert 60 < kept_back < 140
    shuffled = one.splitlines(keepends=True)
    Random(3).shuffle(shuffled)
    assert judged(b"".join(shuffled)).answers.sum() == kept_back
    assert judged(b"".join(shuffled[:200])).excluded > 100
    assert judged(one + two).answers.sum() == kept_back + 700


def test_the_length_of_a_chat_includes_all_messages() -> None:
    history = [{"role": "system", "content": "word " * 2000}, {"role": "user", "content": "Why?"}]
    chat: dict[str, object] = {"task": "one", "model": "a", "correct": True, "messages": history}
    (outcome,) = outcomes_of(chat)
    assert (outcome.text, outcome.prompt_chars) == ("Why?", 10_004)
    (outcome,) = outcomes_of(chat | {"question": "Why?"})
    assert outcome.prompt_chars == 4


def test_many_tasks_are_recognized_from_some_of_their_questions() -> None:
    """Only a part is used, as the time of this fit grows with tasks * tasks * questions."""
    entries: list[dict[str, object]] = [
        {"task": f"t-{t}", "question": f"word{t} thing{t} {t} {n}", "scores": {"a": 1.0, "b": 0.0}}
        for t in range(100)
        for n in range(25)
    ]
    questions = text.questions_of(outcomes_of(*entries))
    assert questions is not None
    known = [f"t-{t}" for t in range(100)]
    some = text.some_of(questions, known)
    assert Counter(some.tasks.tolist()) == dict.fromkeys(known, 20)
    assert len(text.some_of(questions, known[:9]).tasks) == len(questions.tasks)
