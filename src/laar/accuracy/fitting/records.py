"""Read files of graded answers, in several forms, as outcomes.

A file has one JSON entry per line, or one JSON array of entries, optionally gzipped. An entry is

* a question and each model's score on it: ``{task, question, scores: {model: 0..1}}``, with
  ``seconds`` and ``dollars`` by model if known;
* one graded answer: ``{model, task, question, correct}``, where ``correct`` is true, false or 0..1,
  also called ``score`` or ``grade``; ``messages`` may replace the question;
* an outcome of `laar measure`;
* a decision of the log, or of ``GET /decisions``, with the outcome reported for it as ``correct``,
  or in a separate line: ``{decision_id, correct}``. Without an outcome it is not judged. Retries
  are left out: they come from questions that other models failed.

A question is identified by a hash of its text, so that a fit can record which it has seen. If one
model answers a text at several prompt lengths, each length is a different question. If it answers
the same text several times in a file, the text does not identify the question (it refers to a
document that the record does not contain); then an answer is identified by its content and its
number among answers of the same content. A file that is given twice is read once.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from io import BytesIO
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from laar.accuracy.artifact import FINGERPRINT_BYTES, MAX_MODELS
from laar.accuracy.features import GENERIC, bucket_of_estimate, language_of, task_of
from laar.accuracy.fitting.outcomes import (
    MAX_FAULTS_NAMED,
    MeasuredOutcome,
    Verdicts,
    parse_outcome,
)
from laar.accuracy.text import sample_of
from laar.errors import SettingError

MAX_BYTES = 4 << 30
"""Maximum unpacked size of a file: a small compressed file must not exhaust the memory."""

_MAX_LINE_BYTES = 64 << 20
_MAX_NAME_CHARS = 256
_MAX_TASK_CHARS = 128
_MAX_LANGUAGE_CHARS = 64
"""Short, since an artifact's term, at most 256 characters, names a task and a language."""
_MANY_QUESTIONS = 30
"""Number of repeatedly answered questions at which whole questions, rather than single answers, are
held back."""

_QUESTIONS = ("question", "prompt", "query")
_GRADES = ("correct", "score", "grade")
_LISTS = ("decisions", "records", "outcomes")  # keys of an object that holds only a list of entries
_OF_DECISION = ("id", "model", "adapter", "task", "language", "bucket_tokens", "completion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The contents of files of graded answers.

    Args:
        outcomes: one outcome per question and model: the last one.
        faults: the first twenty unreadable entries, each with its file, line and reason.
        unreadable: number of unreadable entries; they are skipped.
        unjudged: number of answers without a verdict; they are skipped.
        contradictions: number of verdicts reversed by a later entry.
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
    """Return the part of an id shared by all answers to its question, at any length."""
    kind, _, rest = query_id.partition(":")
    if kind == "len":
        return rest.partition(":")[2] or query_id
    if kind in ("at", "row"):
        question, _, _ = rest.partition("/")
        return f"q:{question}" if question else query_id
    return query_id


def fingerprint(query_id: str) -> bytes:
    """Return the hash under which an artifact stores a question."""
    question = question_of(query_id).encode("utf-8", "replace")
    return blake2b(question, digest_size=FINGERPRINT_BYTES).digest()


def is_kept_back(query_id: str, share: float) -> bool:
    """Return whether a fit that holds out `share` of the questions holds out this one."""
    question = question_of(query_id).encode()
    digest = blake2b(question, digest_size=4, person=b"hold-out").digest()
    return int.from_bytes(digest, "big") < share * 2**32


def read_records(paths: Sequence[Path]) -> Records:
    """Read files of graded answers.

    Raises:
        SettingError: a file can't be read or is mostly unreadable, or there is no verdict.
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
    """Parse the contents of files, each given with its name.

    Raises:
        SettingError: as in `read_records`.
    """
    verdicts = Verdicts()
    faults: list[str] = []
    unreadable = entries = 0
    measured = other = False
    digest = sha256()
    read: list[list[list[MeasuredOutcome]]] = []
    decided = _Decided({}, {})
    for data, source in dict(files).items():
        digest.update(data)
        found: list[list[MeasuredOutcome]] = []
        first = ""
        bad = number = 0
        for line, raw in _entries(data):
            number += 1
            if decided.takes(raw):
                continue
            try:
                outcomes, is_measured = _outcomes(raw)
            except (ValueError, TypeError) as fault:
                bad += 1
                said = f"{source}:{line}: {_said(fault)}"
                first = first or said
                if len(faults) < MAX_FAULTS_NAMED:
                    faults.append(said)
                continue
            measured, other = measured or is_measured, other or not is_measured
            if is_measured:
                verdicts.add(*outcomes)
            elif outcomes:  # empty for a retry, or a question that no model has answered yet
                found.append(outcomes)
        if bad * 2 > number:
            raise SettingError(
                f"{bad} of {number} entries of {source} are not graded answers; first: {first}"
            )
        unreadable, entries = unreadable + bad, entries + number
        read.append(found)
    read.append(decided.judged())
    for outcome in _told_apart(read):
        verdicts.add(outcome)
    if not verdicts.kept:
        names = ", ".join(source for _, source in files)
        raise SettingError(f"{names}: no judged outcome among {entries} entries")
    return Records(
        outcomes=list(verdicts.kept.values()),
        faults=faults,
        unreadable=unreadable,
        unjudged=verdicts.unjudged + len(decided.decisions) - len(read[-1]),
        contradictions=verdicts.contradictions,
        from_measure=measured and not other,
        sha256=digest.hexdigest(),
    )


class _Decided(NamedTuple):
    """Joins the decisions of a log with outcomes in separate lines, in any order."""

    decisions: dict[str, dict[str, Any]]
    outcomes: dict[str, bool]

    def takes(self, raw: object) -> bool:
        """Add an entry if it is a decision or an outcome of one; return whether it is."""
        if not isinstance(raw, dict):
            return False
        named, correct = raw.get("decision_id"), raw.get("correct")
        if isinstance(named, str) and isinstance(correct, bool) and "model" not in raw:
            self.outcomes[named] = correct
            return True
        if "candidates" not in raw or correct is not None:
            return False
        if not raw.get("tried_models") and isinstance(raw.get("id"), str):
            self.decisions[raw["id"]] = {name: raw[name] for name in _OF_DECISION if name in raw}
        return True

    def judged(self) -> list[list[MeasuredOutcome]]:
        """Return the outcomes of decisions that have one, with the model that answered."""
        made = []
        for name, raw in self.decisions.items():
            if name in self.outcomes:
                with suppress(ValueError):
                    made.append([_graded({**raw, "correct": self.outcomes[name]})])
        return made


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
            raise SettingError(f"{path} is truncated or not a gzip file: {fault}") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{path} holds more than {MAX_BYTES} bytes: split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _entries(data: bytes) -> Iterator[tuple[int, object]]:
    """Yield each entry with its line number or index; a `ValueError` for an invalid line."""
    document = None
    if not _is_first_of_many(data):
        with suppress(orjson.JSONDecodeError):
            document = orjson.loads(data)
    if document is None:
        yield from _lines(data)
        return
    if isinstance(document, dict):
        inner = next((document[name] for name in _LISTS if name in document), None)
        document = inner if isinstance(inner, list) else document
    yield from enumerate(document if isinstance(document, list) else [document], start=1)


def _is_first_of_many(data: bytes) -> bool:
    """Return whether the first line is a complete value followed by more."""
    first = next((line for line in BytesIO(data) if line.strip()), b"")
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return len(first) < len(data.strip())


def _lines(data: bytes) -> Iterator[tuple[int, object]]:
    lines = BytesIO(data)
    for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE_BYTES), b""), start=1):
        if line.strip():
            try:
                yield number, orjson.loads(line)
            except orjson.JSONDecodeError as fault:
                yield number, ValueError(f"not JSON: {fault.msg}")


def _outcomes(raw: object) -> tuple[list[MeasuredOutcome], bool]:
    """Return the outcomes of one entry, and whether it is from `laar measure`."""
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
    end = end if isinstance(end, dict) else raw
    seconds = _number(end, "latency_s", "seconds")
    return MeasuredOutcome.model_construct(
        **_common(raw, _question(raw)),
        model=_name(_answered(raw, end), "model"),
        score=score,
        correct=None if score is None else score >= 0.5,
        latency_s=seconds or 0.0,
        dollars=_number(raw, "dollars", "cost_dollars"),
    )


def _answered(raw: Mapping[str, Any], end: Mapping[str, Any]) -> object:
    """Return the model that answered: the adapter if there is one, else Envoy's last choice."""
    adapter = raw.get("adapter")
    return adapter if adapter and isinstance(adapter, str) else end.get("model", raw.get("model"))


def _common(raw: Mapping[str, Any], question: str) -> dict[str, Any]:
    """Return the fields shared by all answers to a question."""
    task = raw.get("task")
    if task is not None and not isinstance(task, str):
        raise ValueError("task: must be a string")
    tokens = _number(raw, "prompt_tokens", "tokens", "bucket_tokens")
    given = raw.get("id")
    language = raw.get("language")
    if isinstance(language, str) and len(language) > _MAX_LANGUAGE_CHARS:
        raise ValueError(f"language: must be a name of at most {_MAX_LANGUAGE_CHARS} characters")
    seen = _last_part(raw) or question
    named = task.strip().lower()[:_MAX_TASK_CHARS] or GENERIC if task else task_of(seen)
    if question:  # not the id, which may be reused in each task or file
        query_id, language = f"q:{_hash(question)}", language_of(seen)
    else:
        query_id = "" if given in (None, "") else f"id:{named}:{given}"
        language = language if isinstance(language, str) and language else language_of("")
    return {
        "query_id": query_id,
        "language": language,
        "task": named,
        "task_named": bool(task),
        "prompt_chars": _prompt_chars(raw, question),
        "prompt_tokens": None if tokens is None else int(tokens),
        "text": sample_of(seen) or None,
    }


def _told_apart(files: Sequence[Sequence[list[MeasuredOutcome]]]) -> Iterator[MeasuredOutcome]:
    """Yield the outcomes, with ids that distinguish questions of the same text.

    Ids do not depend on the files or the order of entries. If many questions are answered several
    times, the ids of answers to one question share a part (`question_of`).
    """
    lengths: defaultdict[tuple[str, str], set[int | None]] = defaultdict(set)
    repeated: set[str] = set()
    for found in files:
        asked: set[tuple[str, str, int | None]] = set()
        for outcome in chain.from_iterable(found):
            length = _length(outcome)
            lengths[outcome.query_id, outcome.model].add(length)
            key = (outcome.query_id, outcome.model, length)
            if key in asked and outcome.query_id.startswith("q:"):
                repeated.add(outcome.query_id)
            asked.add(key)
    at_lengths = {query_id for (query_id, _), of in lengths.items() if len(of) > 1}
    apart = len(repeated) >= _MANY_QUESTIONS
    seen: Counter[str] = Counter()
    for entry in chain.from_iterable(files):
        query_id = entry[0].query_id
        if not query_id or query_id in repeated:
            first = place_of(entry, query_id, 1)
            seen[first] += 1
            place = place_of(entry, query_id, seen[first])
            if apart and query_id:
                place = place.replace("/", f"{query_id.removeprefix('q:')}/", 1)
        elif query_id in at_lengths:
            place = f"len:{_length(entry[0])}:{query_id}"
        else:
            yield from entry
            continue
        yield from (outcome.model_copy(update={"query_id": place}) for outcome in entry)


def _length(outcome: MeasuredOutcome) -> int | None:
    """Return the bucket of the reported length; None if no length was reported."""
    tokens = outcome.prompt_tokens
    return None if tokens is None else bucket_of_estimate(tokens)


def place_of(entry: Sequence[MeasuredOutcome], query_id: str, number: int) -> str:
    """Return the id of the answers in the `number`-th entry with this content."""
    of = entry[0]
    scores = sorted((outcome.model, outcome.score) for outcome in entry)
    content = _hash(repr((query_id, of.text, of.task, of.prompt_tokens, scores, number)))
    return f"{'at' if len(entry) == 1 else 'row'}:/{content}"


def _question(raw: Mapping[str, Any]) -> str:
    for name in _QUESTIONS:
        if name in raw:
            if not isinstance(raw[name], str):
                raise ValueError(f"{name}: must be a string")
            return str(raw[name])
    return "\n".join(_asked(raw))


def _last_part(raw: Mapping[str, Any]) -> str:
    """Return the last part of a question given in parts, which serving classifies."""
    if any(name in raw for name in _QUESTIONS):
        return ""
    return next(reversed(_asked(raw)), "")


def _asked(raw: Mapping[str, Any]) -> list[str]:
    """Return the parts of the last message from the user."""
    messages = reversed(_messages(raw))
    return next((_texts(message) for message in messages if message.get("role") == "user"), [])


def _prompt_chars(raw: Mapping[str, Any], question: str) -> int:
    """Return the characters of the prompt, or of the question if there are no messages."""
    messages = _messages(raw)
    by_name = any(name in raw for name in _QUESTIONS)
    if by_name or not messages:
        return len(question)
    return sum(len("\n".join(_texts(message))) for message in messages)


def _messages(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = raw.get("messages")
    each = messages if isinstance(messages, list) else ()
    return [message for message in each if isinstance(message, dict)]


def _texts(message: Mapping[str, Any]) -> list[str]:
    """Return the parts of a message's text, or its one string."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


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
