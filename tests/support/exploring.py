"""The number of examples that a property test tries.

`make test` tries the same examples each time (`pytest_configure` in tests/conftest.py), and only a
quarter of them, since the other three quarters seldom find another bug. `make test-all` looks for
new examples, and tries the full number.
"""

from __future__ import annotations

from hypothesis import settings

_SHARE = 4
_LEAST = 10


def examples(count: int) -> int:
    """Return the number of examples to try out of `count`, which the slow suites try."""
    return max(_LEAST, count // _SHARE) if settings.default.derandomize else count
