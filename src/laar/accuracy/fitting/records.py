"""Evidence from anywhere: files of graded answers in several forms, read into outcomes.

One line of JSON for each entry, or one JSON array of entries; packed with gzip or not. An entry is

* a question and each model's score on it: ``{task, question, scores: {model: 0..1}}``, with
  ``seconds`` and ``dollars`` by model where they are known;
* one graded answer: ``{model, task, question, correct}``, ``correct`` being true, false or 0..1,
  also called ``score`` or ``grade``; ``messages`` may stand for the question;
* an outcome of `laar measure`;
* a decision of the log, or of ``GET /decisions``, with the outcome that was reported for it as
  ``correct``. Retries are left out: they come from the questions that others failed.

A question is identified by a hash of its text, so that a fit can record which it has seen. Where
the same model answers the same text several times, the text does not distinguish the questions (a
question about a document that the record does not hold): there an answer is identified by its place
in its file.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

import orjson

from laar.accuracy.artifact import FINGERPRINT_BYTES, MAX_MODELS
from laar.accuracy.features import GENERIC, language_of, task_of
from laar.accuracy.fitting.outcomes import (
    MAX_FAULTS_NAMED,
    MeasuredOutcome,
    Verdicts,
    parse_outcome,
)
from laar.accuracy.text import sample_of
from laar.errors import SettingError

__all__ = ["MAX_BYTES", "Records", "fingerprint", "parse_records", "question_of", "read_records"]

MAX_BYTES = 4 << 30
"""Unpacked, of one file: a small packed file must not fill the memory."""

_MAX_LINE_BYTES = 64 << 20
_MAX_NAME_CHARS = 256
_MANY_QUESTIONS = 30
"""Different questions, among answers that their question does not distinguish, from which on a
share of the questions can be held back rather than a share of the answers."""

_GRADES = ("correct", "score", "grade")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The content of files of graded answers.

    Args:
        outcomes: one outcome for each question and model; the last where a file repeats itself.
        faults: entries left out, each with its file, line and the reason; the first twenty.
        unreadable: how many entries were left out.
        unjudged: answers without a verdict, left out as well.
        contradictions: how often a later entry reversed an earlier verdict.
        from_measure: all entries are outcomes of `laar measure`.
        sha256: hash of the files.
    """

    outcomes: Sequence[MeasuredOutcome]
    faults: Sequence[str]
    unreadable: int
    unjudged: int
    contradictions: int
    from_measure: bool
    sha256: str


def question_of(query_id: str) -> str:
    """The part of an id that all answers to its question share."""
    if not query_id.startswith("at:"):
        return query_id
    question, _, _ = query_id.partition("/")
    return query_id if question == "at:" else question


def fingerprint(query_id: str) -> bytes:
    """The hash of a question that an artifact keeps."""
    question = question_of(query_id).encode("utf-8", "replace")
    return blake2b(question, digest_size=FINGERPRINT_BYTES).digest()


def read_records(paths: Sequence[Path]) -> Records:
    """Reads files of graded answers.

    Raises:
        SettingError: a file that can't be read, that is mostly unreadable, or no verdict in any.
    """
    read = []
    for path in paths:
        try:
            read.append((_unpacked(path), str(path)))
        except OSError as fault:
            raise SettingError(
                f"{path}: {fault.strerror or fault}; `laar measure` writes such files"
            ) from None
    return parse_records(read)


def parse_records(files: Sequence[tuple[bytes, str]]) -> Records:
    """Reads the contents of files, each given with its name.

    Raises:
        SettingError: as `read_records`.
    """
    verdicts = Verdicts()
    faults: list[str] = []
    unreadable = entries = 0
    measured = other = False
    digest = sha256()
    for data, source in files:
        digest.update(data)
        found: list[list[MeasuredOutcome]] = []
        bad = 0
        number = 0
        for line, raw in _entries(data, source):
            number += 1
            try:
                outcomes, is_measured = _outcomes(raw)
            except (ValueError, TypeError) as fault:
                bad += 1
                if len(faults) < MAX_FAULTS_NAMED:
                    faults.append(f"{source}:{line}: {_said(fault)}")
                continue
            measured, other = measured or is_measured, other or not is_measured
            found.append(outcomes)
        if bad * 2 > number:
            raise SettingError(
                f"{bad} of {number} entries of {source} are no graded answers; first: {faults[-1]}"
            )
        unreadable, entries = unreadable + bad, entries + number
        for outcome in _told_apart(found):
            verdicts.add(outcome)
    if not verdicts.kept:
        names = ", ".join(source for _, source in files)
        raise SettingError(f"{names}: no judged outcome among {entries} entries")
    return Records(
        outcomes=list(verdicts.kept.values()),
        faults=faults,
        unreadable=unreadable,
        unjudged=verdicts.unjudged,
        contradictions=verdicts.contradictions,
        from_measure=measured and not other,
        sha256=digest.hexdigest(),
    )


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            if packed:
                with gzip.open(file) as inner:
                    data = inner.read(MAX_BYTES + 1)
            else:
                data = file.read(MAX_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise SettingError(f"{path} is torn or no gzip file: {fault}") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{path} holds more than {MAX_BYTES} bytes: split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _entries(data: bytes, source: str) -> Iterator[tuple[int, object]]:
    """Each entry and its line, or its number in a JSON array; a bad line comes as its fault."""
    if data.lstrip()[:1] == b"[":
        try:
            array = orjson.loads(data)
        except orjson.JSONDecodeError as fault:
            raise SettingError(f"{source}:{fault.lineno}: not JSON: {fault.msg}") from None
        yield from enumerate(array, start=1)
        return
    whole = _wrapped(data)
    if whole is not None:
        yield from enumerate(whole, start=1)
        return
    if not _begins_with_an_object(data):
        with suppress(orjson.JSONDecodeError):  # one object over many lines
            yield 1, orjson.loads(data)
            return
    lines = BytesIO(data)
    for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE_BYTES), b""), start=1):
        if line.strip():
            try:
                yield number, orjson.loads(line)
            except orjson.JSONDecodeError as fault:
                yield number, ValueError(f"not JSON: {fault.msg}")


def _wrapped(data: bytes) -> list[object] | None:
    """The entries of an object that holds nothing but a list of them."""
    head = data[:64].lstrip().removeprefix(b"{").lstrip()
    if not head.startswith((b'"decisions"', b'"records"', b'"outcomes"')):
        return None
    with suppress(orjson.JSONDecodeError):
        document = orjson.loads(data)
        inner = next(iter(document.values()))
        return inner if isinstance(inner, list) else None
    return None


def _begins_with_an_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data.lstrip().partition(b"\n")[0]), dict)
    except orjson.JSONDecodeError:
        return False


def _outcomes(raw: object) -> tuple[list[MeasuredOutcome], bool]:
    """The outcomes of one entry, and whether it is one of `laar measure`."""
    if isinstance(raw, ValueError):
        raise raw
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    if "query_id" in raw:
        return [parse_outcome(orjson.dumps(raw))], True
    if "scores" in raw:
        return _scored(raw), False
    if raw.get("tried_models") and "correct" in raw:
        return [], False
    return [_graded(raw)], False


def _scored(raw: dict[str, Any]) -> list[MeasuredOutcome]:
    scores = raw["scores"]
    if not isinstance(scores, dict) or len(scores) > MAX_MODELS:
        raise ValueError(f"scores: must be an object of at most {MAX_MODELS} models")
    question = _question(raw)
    if not question:
        raise ValueError("question: missing or empty")
    common = _common(raw, question)
    seconds, dollars = _by_model(raw, "seconds"), _by_model(raw, "dollars")
    made = []
    for model, value in scores.items():
        score = _score(value, f"scores.{model}")
        made.append(
            MeasuredOutcome.model_construct(
                **common,
                model=_name(model, "scores"),
                score=score,
                correct=None if score is None else score >= 0.5,
                latency_s=seconds.get(model, 0.0),
                dollars=dollars.get(model),
            )
        )
    return made


def _graded(raw: dict[str, Any]) -> MeasuredOutcome:
    grade = next((name for name in _GRADES if name in raw), None)
    if grade is None:
        raise ValueError("has neither scores nor correct, score or grade")
    score = _score(raw[grade], grade)
    end = raw.get("completion")
    seconds = _number(end if isinstance(end, dict) else raw, "latency_s", "seconds")
    return MeasuredOutcome.model_construct(
        **_common(raw, _question(raw)),
        model=_name(raw.get("model"), "model"),
        score=score,
        correct=None if score is None else score >= 0.5,
        latency_s=seconds or 0.0,
        dollars=_number(raw, "dollars", "cost_dollars"),
    )


def _common(raw: Mapping[str, Any], question: str) -> dict[str, Any]:
    """The fields that all answers to a question share; without an id or a text, by their place."""
    task = raw.get("task")
    if task is not None and not isinstance(task, str):
        raise ValueError("task: must be a string")
    tokens = _number(raw, "prompt_tokens", "tokens", "bucket_tokens")
    given = raw.get("id")
    language = raw.get("language")
    if isinstance(language, str) and len(language) > _MAX_NAME_CHARS:
        raise ValueError(f"language: must be a name of at most {_MAX_NAME_CHARS} characters")
    named = _task(task) if task else task_of(question)
    if question:  # as serving sees it: ids may begin again with each task or file
        query_id, language = f"q:{_hash(question)}", language_of(question)
    else:
        query_id = f"id:{named}:{given}" if given else ""
        language = language if isinstance(language, str) and language else language_of("")
    return {
        "query_id": query_id,
        "language": language,
        "task": named,
        "told": bool(task),
        "prompt_chars": len(question),
        "prompt_tokens": None if tokens is None else int(tokens),
        "text": sample_of(question) or None,
    }


def _told_apart(found: Sequence[list[MeasuredOutcome]]) -> Iterator[MeasuredOutcome]:
    """The outcomes, with an id by content for answers that their question does not distinguish.

    The same lines in another file, or in another order, are the same answers. Where there are many
    questions, the ids of one question's answers begin alike (`question_of`).
    """
    asked = Counter(
        (outcome.query_id, outcome.task, outcome.prompt_tokens, outcome.model)
        for outcomes in found
        for outcome in outcomes
        if len(outcomes) == 1 and outcome.query_id.startswith("q:")
    )
    repeated = {key[0] for key, times in asked.items() if times > 1}
    apart = len(repeated) >= _MANY_QUESTIONS
    seen: Counter[tuple[object, ...]] = Counter()
    for outcomes in found:
        for outcome in outcomes:
            if not outcome.query_id or (len(outcomes) == 1 and outcome.query_id in repeated):
                content = (
                    *(outcome.query_id, outcome.text, outcome.task, outcome.prompt_tokens),
                    *(outcome.model, outcome.score),
                )
                seen[content] += 1
                question = outcome.query_id.removeprefix("q:") if apart else ""
                place = f"at:{question}/{_hash(repr((*content, seen[content])))}"
                yield outcome.model_copy(update={"query_id": place})
            else:
                yield outcome


def _question(raw: Mapping[str, Any]) -> str:
    for name in ("question", "prompt", "query"):
        if name in raw:
            if not isinstance(raw[name], str):
                raise ValueError(f"{name}: must be a string")
            return str(raw[name])
    messages = raw.get("messages")
    for message in reversed(messages) if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            if isinstance(content, list):
                texts = [part.get("text") for part in content if isinstance(part, dict)]
                return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _score(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and isfinite(value) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"{where[:300]}: must be true, false or a number in 0..1")


def _number(raw: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = raw.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: must be a number")
        if not (isfinite(value) and 0 <= value < 2**31):
            raise ValueError(f"{name}: must be a number of 0 or more")
        return float(value)
    return None


def _by_model(raw: Mapping[str, Any], name: str) -> dict[str, float]:
    given = raw.get(name)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"{name}: must be an object, by model")
    numbers = {model: _number(given, model) for model in given}
    return {model: number for model, number in numbers.items() if number is not None}


def _task(task: str) -> str:
    return task.strip().lower()[:_MAX_NAME_CHARS] or GENERIC


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME_CHARS:
        raise ValueError(f"{where}: the model must be a name of 1 to {_MAX_NAME_CHARS} characters")
    return value


def _hash(text: str) -> str:
    return blake2b(text.strip().encode("utf-8", "replace"), digest_size=16).hexdigest()


def _said(fault: Exception) -> str:
    errors = getattr(fault, "errors", None)
    if errors is None:
        return str(fault)
    first = errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
