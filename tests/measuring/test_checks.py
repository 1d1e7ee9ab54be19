"""Checks accept and reject answers to questions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from laar.measuring.checks import CheckSpec, decide


def spec(**fields: Any) -> CheckSpec:
    return CheckSpec.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "answer", "correct"),
    [
        ({"contains": "42"}, "it is 42.", True),
        ({"contains": "42"}, "it is 24.", False),
        ({"exact": " 42"}, "42\n", True),
        ({"exact": "42"}, "42.", False),
        ({"number": 42}, "it is 42.", True),
        ({"number": 1234.5}, "$1,234.50", True),
        ({"number": 42, "tolerance": 0.5}, "first 1, then 42.4", True),
        ({"number": 42, "tolerance": 0.5}, "42 or 43", False),
        ({"number": -2.5e-3}, "x=-2.5e-3!", True),
        ({"number": 0.5}, ".5", True),
        ({"number": -7}, "x = \N{MINUS SIGN}7", True),
        ({"number": 1}, "none", False),
        ({"number": 1}, "1" * 20_000, False),
        ({"number": 1}, "1e999", False),
        ({"json": {"a": [1, 2.0]}}, '{"a": [1.0, 2]}', True),
        ({"json": {"a": 1}}, 'Here:\n```json\n{"a": 1}\n```\ndone', True),
        ({"json": {"a": 1}}, '{"a": true}', False),
        ({"json": {"a": 1}}, '{"a": 1, "b": 2}', False),
        ({"json": [1]}, "[1, 1]", False),
        ({"json": None}, "null", True),
        ({"json": None}, "none", False),
        ({"json": 1}, "NaN", False),
        ({"json": 1}, "```" + "\n" * 200_000 + "1", False),  # quadratic time would take minutes
    ],
)
def test_each_kind_of_check_accepts_and_rejects_answers(
    fields: dict[str, Any], answer: str, correct: bool
) -> None:
    assert decide(spec(**fields), answer) is correct


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"contains": "a", "exact": "b"},
        {"tolerance": 1},
        {"number": float("nan")},
        {"surprise": 1},
    ],
)
def test_invalid_checks_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**fields)
