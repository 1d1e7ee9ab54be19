"""The combinations of two parameters that `make test` tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def crossed(shapes: Sequence[str], cases: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test for each shape and case; a case may be a tuple of several.

    Every case is tried in the first shape, and the first case in every shape. The other
    combinations run in the slow suites, since the same code reads a case in each shape.
    """
    made = []
    for shape in shapes:
        for case in cases:
            values = case if isinstance(case, tuple) else (case,)
            is_slow = shape is not shapes[0] and case is not cases[0]
            made.append(pytest.param(shape, *values, marks=[pytest.mark.slow] * is_slow))
    return made
