"""Read files of graded answers, in several forms, as outcomes.

A file has one JSON entry per line, or one JSON array of entries, optionally gzipped. An entry is

* a question and each model's score on it: ``{task, question, scores: {model: 0..1}}``, with
  ``seconds`` by model if known;
* one graded answer: ``{model, task, question, correct}``, where ``correct`` is true, false or 0..1,
  also called ``score`` or ``grade``; ``messages`` may replace the question;
* an outcome of `laar measure`.

A question is identified by a hash of its text, so that a fit can record which questions it used. If
one model answers a text at several prompt lengths, each length is a different question. If it
answers the same text several times in a file, the text does not identify the question (it refers to
a document that the record does not contain); then an answer is identified by its content and its
number among answers with the same content. A file that is given twice is read once.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from laar.accuracy.artifact import FINGERPRINT_BYTES, MAX_MODELS
from laar.accuracy.features import GENERIC, bucket_of, language_of, task_of
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.text import sample_of
from laar.errors import SettingError, first_fault

MAX_BYTES = 4 << 30
"""Maximum unpacked size of a file: a small compressed file must not exhaust memory."""

MAX_FAULTS_NAMED = 20
"""Maximum number of unreadable entries that are listed; the others are only counted."""

MAX_TASK_CHARS = 128
_MAX_LANGUAGE_CHARS = 64
"""Short, so that a term of an artifact (256 characters) can contain a task and a language."""
_MANY_QUESTIONS = 30
"""With this many questions answered several times, questions rather than answers are held out."""

_GRADES = ("correct", "score", "grade")
_LISTS = ("records", "outcomes")  # keys of an object that only holds a list of entries


@dataclass(slots=True)
class GradedAnswers:
    """The contents of files of graded answers.

    Attributes:
        faults: the first twenty unreadable entries, each with its file, line and reason.
        unreadable: number of unreadable entries; they are skipped.
        unjudged: number of answers without a verdict; they are skipped.
        contradictions: number of verdicts reversed by a later entry: the endpoint is not
            deterministic at temperature 0, or two runs had different settings.
        from_measure: all entries are outcomes of `laar measure`.
        sha256: hash of the files.
    """

    faults: list[str] = field(default_factory=list)
    unreadable: int = 0
    unjudged: int = 0
    contradictions: int = 0
    from_measure: bool = False
    sha256: str = ""
    _last: dict[tuple[str, str, str, int], MeasuredOutcome] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[MeasuredOutcome]:
        """The last outcome of each question and model."""
        return list(self._last.values())

    def add(self, outcome: MeasuredOutcome) -> None:
        """Add an outcome; it replaces an earlier one of the same question and model."""
        if outcome.correct is None:
            self.unjudged += 1
            return
        # Two sets of questions may use the same ids.
        key = (outcome.query_id, outcome.model, outcome.task, outcome.prompt_chars)
        earlier = self._last.get(key)
        self.contradictions += earlier is not None and earlier.correct != outcome.correct
        self._last[key] = outcome


def question_of(query_id: str) -> str:
    """Return the part of an id that all answers to the question share, at any prompt length."""
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


def read_records(paths: Sequence[Path]) -> GradedAnswers:
    """Read files of graded answers.

    Raise `SettingError` if a file can't be read or is mostly unreadable, or there is no verdict.
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


def parse_records(files: Sequence[tuple[bytes, str]]) -> GradedAnswers:
    """Parse the contents of files, each given with its name.

    Raises:
        SettingError: as in `read_records`.
    """
    read = GradedAnswers()
    entries = 0
    measured = other = False
    digest = sha256()
    asked: list[list[list[MeasuredOutcome]]] = []
    for data, source in dict(files).items():
        digest.update(data)
        found: list[list[MeasuredOutcome]] = []
        first = ""
        bad = number = 0
        for line, raw in _entries(data):
            number += 1
            try:
                outcomes, is_measured = _outcomes(raw)
            except (ValueError, TypeError) as fault:
                bad += 1
                what = first_fault(fault) if isinstance(fault, ValidationError) else fault
                said = f"{source}:{line}: {what}"
                first = first or said
                if len(read.faults) < MAX_FAULTS_NAMED:
                    read.faults.append(said)
                continue
            measured, other = measured or is_measured, other or not is_measured
            if is_measured:
                read.add(*outcomes)
            elif outcomes:  # empty for a question that no model has answered yet
                found.append(outcomes)
        if bad * 2 > number:
            raise SettingError(
                f"{bad} of {number} entries of {source} are not graded answers; first: {first}"
            )
        read.unreadable, entries = read.unreadable + bad, entries + number
        asked.append(found)
    for outcome in _told_apart(asked):
        read.add(outcome)
    if not read.outcomes:
        names = ", ".join(source for _, source in files)
        raise SettingError(f"{names}: no judged outcome among {entries} entries")
    read.from_measure = measured and not other
    read.sha256 = digest.hexdigest()
    return read


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MAX_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise SettingError(f"{path} is truncated or not a gzip file: {fault}") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{path} holds more than {MAX_BYTES} bytes: split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _entries(data: bytes) -> Iterator[tuple[int, object]]:
    """Yield each entry, or a `ValueError` for an invalid line, with its line number or index."""
    try:
        document = orjson.loads(data)  # stops at the second of several values
    except orjson.JSONDecodeError:
        yield from _lines(data)
        return
    if isinstance(document, dict):
        inner = next((document[name] for name in _LISTS if name in document), None)
        document = inner if isinstance(inner, list) else document
    yield from enumerate(document if isinstance(document, list) else [document], start=1)


def _lines(data: bytes) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(BytesIO(data), start=1):
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
        return [MeasuredOutcome.model_validate(raw)], True
    if "scores" in raw:
        return _scored(raw), False
    return [_graded(raw)], False


_Model = Annotated[str, Field(min_length=1, max_length=256)]
_Score = Annotated[
    float,
    Field(ge=0, le=1),
    BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value),
]
_Amount = Annotated[float, Field(ge=0, lt=2**31)]


def _called(*names: str) -> Any:
    """Return a field that may have any of these names in a file."""
    return Field(default=None, validation_alias=AliasChoices(*names))


class _Entry(BaseModel):
    """The fields common to entries of every form."""

    model_config = ConfigDict(strict=True)

    question: str | None = _called("question", "prompt", "query")
    messages: Any = None
    id: Any = None
    task: str | None = None
    language: Annotated[str, Field(max_length=_MAX_LANGUAGE_CHARS)] | None = None
    tokens: _Amount | None = _called("prompt_tokens", "tokens")

    def outcome(self, model: str, score: float | None, seconds: float | None) -> MeasuredOutcome:
        """Return one model's outcome; a different question with the same text has the same id."""
        question = seen = self.question or ""
        prompt_chars = len(question)
        if self.question is None and isinstance(self.messages, list):
            messages = [message for message in self.messages if isinstance(message, dict)]
            users = (texts_of(m) for m in reversed(messages) if m.get("role") == "user")
            parts = next(users, [])
            question = "\n".join(parts)
            seen = parts[-1] if parts else ""  # the part that serving classifies
            prompt_chars = sum(len("\n".join(texts_of(message))) for message in messages)
        named = (self.task or "").strip().lower()[:MAX_TASK_CHARS]
        task = (named or GENERIC) if self.task else task_of(seen)
        if question:  # not the id, which may be reused in each task or file
            query_id, language = f"q:{_hash(question)}", language_of(seen)
        else:
            query_id = "" if self.id in (None, "") else f"id:{task}:{self.id}"
            language = self.language or language_of("")
        return MeasuredOutcome.model_construct(
            query_id=query_id,
            model=model,
            score=score,
            correct=None if score is None else score >= 0.5,
            language=language,
            task=task,
            task_named=bool(self.task),
            prompt_chars=prompt_chars,
            prompt_tokens=None if self.tokens is None else int(self.tokens),
            text=sample_of(seen) or None,
            latency_s=seconds or 0.0,
        )


class _Scored(_Entry):
    scores: Annotated[dict[_Model, _Score | None], Field(max_length=MAX_MODELS)]
    seconds: dict[str, _Amount | None] = {}


class _Graded(_Entry):
    model: _Model
    grade: _Score | None = _called(*_GRADES)
    seconds: _Amount | None = _called("latency_s", "seconds")


def _scored(raw: dict[str, Any]) -> list[MeasuredOutcome]:
    entry = _Scored.model_validate(_present(raw))
    made = [
        entry.outcome(model, score, entry.seconds.get(model))
        for model, score in entry.scores.items()
    ]
    if not all(outcome.text for outcome in made):
        raise ValueError("question: missing or empty")
    return made


def _graded(raw: dict[str, Any]) -> MeasuredOutcome:
    if raw.keys().isdisjoint(_GRADES):
        raise ValueError("has neither scores nor correct, score or grade")
    entry = _Graded.model_validate(_present(raw))
    return entry.outcome(entry.model, entry.grade, entry.seconds)


def _present(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with a value; a grade of null is a missing verdict."""
    return {name: value for name, value in raw.items() if value is not None or name in _GRADES}


def _told_apart(files: Sequence[Sequence[list[MeasuredOutcome]]]) -> Iterator[MeasuredOutcome]:
    """Yield the outcomes, with ids that distinguish questions with the same text.

    Ids do not depend on the files or the order of entries. If many questions are answered several
    times, the ids of answers to one question share a part (`question_of`).
    """
    lengths: defaultdict[tuple[str, str], set[int | None]] = defaultdict(set)
    repeated: set[str] = set()
    for found in files:
        answers = chain.from_iterable(found)
        counts = Counter((answer.query_id, answer.model, _length(answer)) for answer in answers)
        for (query_id, model, length), count in counts.items():
            lengths[query_id, model].add(length)
            if count > 1 and query_id.startswith("q:"):
                repeated.add(query_id)
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
    return None if tokens is None else bucket_of(tokens)


def place_of(entry: Sequence[MeasuredOutcome], query_id: str, number: int) -> str:
    """Return the answer id of the `number`-th entry with this content."""
    of = entry[0]
    scores = sorted((outcome.model, outcome.score) for outcome in entry)
    content = _hash(repr((query_id, of.text, of.task, of.prompt_tokens, scores, number)))
    return f"{'at' if len(entry) == 1 else 'row'}:/{content}"


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """Return the text parts of a message, or its single string."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def _hash(text: str) -> str:
    return blake2b(text.strip().encode("utf-8", "replace"), digest_size=16).hexdigest()
