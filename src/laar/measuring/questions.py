"""Questions to measure with, and users' evaluation sets in JSONL files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from laar.accuracy.fitting.records import MAX_TASK_CHARS
from laar.client.until import Message
from laar.errors import SettingError, first_fault
from laar.measuring.checks import CheckSpec

_MAX_LINE_BYTES = 64 * 2**20  # maximum length of a line: a few million tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and how to check its answer.

    Args:
        ask: returns the messages. It is a function so that long prompts are built one at a time
            instead of all being held in memory.
        task: the task; None to detect it.
    """

    id: str
    ask: Callable[[], Sequence[Message]]
    check: CheckSpec
    task: str | None = None


class _FileQuestion(BaseModel):
    """One line of a user's evaluation set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=256)] = ""
    messages: Annotated[list[dict[str, object]], Field(min_length=1)]
    check: CheckSpec
    task: Annotated[str, Field(max_length=MAX_TASK_CHARS)] | None = None


def read_questions(path: Path) -> list[Question]:
    """Read an evaluation set.

    Raise `SettingError` if the file contains no questions, or a line is invalid, and `OSError` if
    it can't be read.
    """
    with path.open("rb") as file:
        lines = enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), 1)
        found = [_question(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not found:
        raise SettingError(f"{path} contains no questions")
    return found


def _question(line: bytes, where: str) -> Question:
    try:
        question = _FileQuestion.model_validate(orjson.loads(line))
    except ValidationError as fault:
        raise SettingError(f"{where}: {first_fault(fault)}") from fault
    except ValueError as fault:
        raise SettingError(f"{where}: not JSON: {fault}") from fault
    return Question(
        id=question.id or blake2b(orjson.dumps(question.messages), digest_size=12).hexdigest(),
        ask=lambda: question.messages,
        check=question.check,
        task=question.task,
    )
