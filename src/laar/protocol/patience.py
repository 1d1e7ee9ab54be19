"""How long clients say that they wait for an answer: libraries, gRPC's and Envoy's deadlines."""

from __future__ import annotations

import math
from collections.abc import Mapping

_PATIENCE_S: Mapping[str, Mapping[str, float]] = {
    "x-stainless-timeout": {"": 1.0},  # OpenAI's and Anthropic's libraries
    "x-stainless-read-timeout": {"": 1.0},
    "x-envoy-upstream-rq-timeout-ms": {"": 1e-3},
    "grpc-timeout": {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9},
}
"""Headers, each with the seconds in its units."""

PATIENCE_HEADERS = frozenset(_PATIENCE_S)
_MAX_CHARS = 16


def patience_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds for which the client waits, by the header that says the least.

    Return None if none says it: some libraries write that they have no limit.
    """
    found = math.inf
    for name, units in _PATIENCE_S.items():
        value = headers.get(name, "").strip()
        unit = "" if "" in units else value[-1:]
        if unit in units and len(value) <= _MAX_CHARS:
            try:
                seconds = float(value.removesuffix(unit)) * units[unit]
            except ValueError:
                continue
            if seconds > 0.0:  # 0 means no limit to Envoy; NaN is not greater
                found = min(found, seconds)
    return found if found < math.inf else None
