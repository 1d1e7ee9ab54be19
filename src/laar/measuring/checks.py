"""Check answers with the checkers of an evaluation set.

    {"contains": "42"}                     the text occurs in the answer
    {"exact": "42"}                        the answer is the text, ignoring whitespace at both ends
    {"json": {"x": 1}}                     the answer is this JSON, alone or in a code fence
    {"number": 42, "tolerance": 0.5}       the last number in the answer is within the tolerance

Each check takes time linear in the answer's length. For other checks, grade answers with your own
program; `laar fit` reads its output.
"""

from __future__ import annotations

import re
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_NUMBER_CHARS = 10_000  # maximum length searched, from the answer's end, for the last number
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)


class CheckSpec(BaseModel):
    """A checker of exactly one kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contains: str | None = None
    exact: str | None = None
    json_value: Annotated[JsonValue, Field(alias="json")] = None
    number: Annotated[float, Field(allow_inf_nan=False)] | None = None
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _names_one_kind(self) -> CheckSpec:
        kinds = self.model_fields_set - {"tolerance"}
        named = [kind for kind in kinds if kind == "json_value" or getattr(self, kind) is not None]
        if len(kinds) != 1 or not named:
            raise ValueError("give exactly one of contains, exact, json, number")
        return self


def decide(spec: CheckSpec, answer: str) -> bool:
    """Return whether an answer passes a check."""
    if spec.contains is not None:
        return spec.contains in answer
    if spec.exact is not None:
        return spec.exact.strip() == answer.strip()
    if spec.number is not None:
        return _is_near(answer, spec.number, spec.tolerance)
    return _is_json(answer, spec.json_value)


def _is_near(answer: str, number: float, tolerance: float) -> bool:
    found = _NUMBER.findall(answer[-_NUMBER_CHARS:].replace("\N{MINUS SIGN}", "-"))
    return bool(found) and abs(float(found[-1].replace(",", "")) - number) <= tolerance


def _is_json(answer: str, value: JsonValue) -> bool:
    fenced = _FENCE.search(answer)
    try:
        found = orjson.loads((fenced[1] if fenced else answer).encode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return False
    return _same(found, value)


def _same(found: object, value: object) -> bool:
    """Return whether JSON values are equal: 1 equals 1.0, but true does not equal 1."""
    if isinstance(found, dict) and isinstance(value, dict):
        return found.keys() == value.keys() and all(_same(found[k], value[k]) for k in value)
    if isinstance(found, list) and isinstance(value, list):
        return len(found) == len(value) and all(map(_same, found, value))
    return isinstance(found, bool) == isinstance(value, bool) and found == value
