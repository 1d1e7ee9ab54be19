"""Check all promises of a filter, scorer, picker or policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laar.testing import checks


def check_all(make: Callable[[], Any], *, symmetric: bool = True) -> None:
    """Run every check; raise one `AssertionError` that lists all broken promises."""
    broken = []
    for check in checks(make, symmetric=symmetric):
        try:
            check()
        except AssertionError as error:
            broken.append(f"{check}: {error}")
    assert not broken, "\n".join(broken)
