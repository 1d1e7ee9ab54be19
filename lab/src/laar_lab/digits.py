"""The precision with which numbers are stored and compared: seven digits."""

from __future__ import annotations

import math
from collections.abc import Iterable

_DIGITS = 7

TOLERANCE = 1e-6
"""Relative and absolute tolerance, given that stored numbers have seven digits."""


def rounded(values: Iterable[float]) -> list[float]:
    """Return the values as they are stored."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def same(before: float, after: float) -> bool:
    """Return whether two numbers are equal to the stored precision; NaN equals NaN."""
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
