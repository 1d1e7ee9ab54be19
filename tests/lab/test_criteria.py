"""Every experiment declares its criteria beforehand, and no test accepts either verdict."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from laar_lab.experiments import all_experiments

TESTS = Path(__file__).parents[1]
JUDGES_NOTHING = {"suite"}
"""Experiments without claims, which only help to choose a policy."""

VERDICTS = {"shown", "in kind", "contrary", "open", "reproduced", "contradicted", "lost", "within"}
EXITS = {0, 3, 4}
"""Exit statuses of `laar lab run`: all claims shown, not all shown, no verdict."""


def test_every_claim_has_a_criterion() -> None:
    for name, experiment in all_experiments().items():
        assert bool(experiment.claims) != (name in JUDGES_NOTHING), name
        for claim in experiment.claims:
            assert claim.says, name
            assert claim.metric, f"{name}, {claim.name}"
            assert math.isfinite(claim.bound), f"{name}, {claim.name}"
            assert 1 <= claim.seeds <= experiment.seeds, f"{name}, {claim.name}"
            assert bool(claim.paper) == bool(claim.published), f"{name}, {claim.name}"


def either(source: str) -> Iterator[int]:
    """Yield lines of assertions that hold for two verdicts, or for two statuses of verdicts."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assert):
            continue
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In):
                left = ast.unparse(part.left)
                among = part.comparators[0]
                values = {
                    item.value
                    for item in getattr(among, "elts", ())
                    if isinstance(item, ast.Constant)
                }
                is_exit = left.endswith(("exit_code", "returncode")) and len(values & EXITS) > 1
                if is_exit or len(values & VERDICTS) > 1:
                    yield node.lineno
            elif isinstance(part, ast.BoolOp) and isinstance(part.op, ast.Or):
                sides = [ast.unparse(side) for side in part.values]
                if sum("verdict" in side or "exit_code" in side for side in sides) > 1:
                    yield node.lineno


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("assert ran.exit_code in (0, 3)", True),
        ("assert ran.exit_code in {3, 4}, ran.output", True),
        ("assert one.outcome in ('shown', 'open')", True),
        ("assert one.verdict == 'shown' or one.verdict == 'lost'", True),
        ("assert ran.exit_code == 3", False),
        ("assert ran.exit_code in (1, 2)", False),
        ("assert one.outcome in ('shown',)", False),
        ("if one.outcome in ('contrary', 'open'):\n    assert one.why", False),
    ],
)
def test_an_assertion_that_accepts_either_verdict_is_detected(source: str, found: bool) -> None:
    assert bool(list(either(source))) == found


@pytest.mark.parametrize("room", ["lab", "demo", "sim", "docs"])
def test_no_test_accepts_either_verdict(room: str) -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted((TESTS / room).glob("*.py"))
        if path.name != Path(__file__).name
        for line in either(path.read_text("utf-8"))
    ]
    assert found == []
