"""Faults a simulated endpoint shows on request.

A test of a picker or a client needs endpoints that fail in the ways real ones do, at the moment the
test chooses. A fault is written ``kind[:value][@share]``: `reset:5` cuts the connection after five
tokens, `503:2@0.1` refuses one request in ten with ``retry-after: 2``. It is a start option, or a
request's ``x-sim-fault`` header where the endpoint was started to honour that header.

| kind | value (default) | what the client sees |
| --- | --- | --- |
| slow | factor (3) | the answer takes that many times longer; as a start option, the engine |
| hang | | a stream gets its head and nothing more, another request gets nothing at all |
| refuse | | the connection is reset before a byte of the answer |
| reset | tokens (3) | the connection is reset after that many tokens |
| wrong | | an ordinary answer with another text |
| flap | seconds (10) | healthy and unhealthy periods in turn; a start option only |
| 429, 503 | retry-after, seconds (no header) | that status in vLLM's envelope |
| full | | what vLLM says when its queue is full: 503, but status 200 and an SSE error on a stream |
| oom | seconds of outage (1) | the process dies: all connections reset, cache and counters lost |

Real connection refusals (nobody listens) happen during the outage of `oom` only. `/v1/embeddings`
knows the statuses and `flap`; the routes that generate know all of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from laar.errors import SettingError

__all__ = ["Fault", "FaultKind", "draw_fault", "parse_fault", "slow_factor", "unhealthy"]


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW = "slow"
    HANG = "hang"
    REFUSE = "refuse"
    RESET = "reset"
    WRONG = "wrong"
    FLAP = "flap"
    TOO_MANY = "429"
    UNAVAILABLE = "503"
    FULL = "full"
    OUT_OF_MEMORY = "oom"


_DEFAULTS = {
    FaultKind.SLOW: 3.0,
    FaultKind.RESET: 3.0,
    FaultKind.FLAP: 10.0,
    FaultKind.OUT_OF_MEMORY: 1.0,
}
_VALUED = {*_DEFAULTS, FaultKind.TOO_MANY, FaultKind.UNAVAILABLE}
# These are properties of the whole endpoint when they are start options: nothing to draw.
_STANDING = {FaultKind.SLOW, FaultKind.FLAP}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, the kind's value (None: it has none), and the share of requests hit."""

    kind: FaultKind
    value: float | None = None
    share: float = 1.0


def parse_fault(text: str) -> Fault:
    """Reads ``kind[:value][@share]``.

    Raises:
        SettingError: the text names what is wrong and what is allowed.
    """
    head, _, share_text = text.strip().partition("@")
    name, _, value_text = head.partition(":")
    try:
        kind = FaultKind(name)
    except ValueError:
        known = ", ".join(FaultKind)
        raise SettingError(f"fault {text!r}: {name!r} is not one of {known}") from None
    if value_text and kind not in _VALUED:
        raise SettingError(f"fault {text!r}: {name} takes no value")
    try:
        value = float(value_text) if value_text else _DEFAULTS.get(kind)
        share = float(share_text) if share_text else 1.0
    except ValueError:
        raise SettingError(f"fault {text!r}: write kind[:number][@share]") from None
    if not (value is None or 0 < value < 1e6) or not 0 < share <= 1:
        raise SettingError(f"fault {text!r}: the value must be above 0, the share in (0, 1]")
    return Fault(kind, value, share)


def draw_fault(faults: Sequence[Fault], rng: random.Random) -> Fault | None:
    """The start option, if any, that hits the next request."""
    for fault in faults:
        if fault.kind not in _STANDING and rng.random() < fault.share:
            return fault
    return None


def slow_factor(faults: Sequence[Fault]) -> float:
    """How many times slower than its profile the engine runs under these start options."""
    factor = 1.0
    for fault in faults:
        if fault.kind is FaultKind.SLOW:
            factor *= fault.value or 1
    return factor


def unhealthy(faults: Sequence[Fault], uptime_s: float) -> bool:
    """Whether a flapping endpoint is in a bad period; the first period is a good one."""
    return any(
        fault.kind is FaultKind.FLAP and uptime_s // (fault.value or 1) % 2 == 1 for fault in faults
    )
