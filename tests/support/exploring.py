"""How many examples a property test tries.

`make test` tries the same ones each time (`pytest_configure` in tests/conftest.py): a quarter of
the number, since the other three quarters seldom find a fault that the first does not.
`make test-all` looks for new ones, and tries the whole number.
"""

from __future__ import annotations

from hypothesis import settings

_SHARE = 4
_LEAST = 10


def examples(count: int) -> int:
    """Return the number of examples to try out of `count`, which the slow suites try."""
    return max(_LEAST, count // _SHARE) if settings.default.derandomize else count
