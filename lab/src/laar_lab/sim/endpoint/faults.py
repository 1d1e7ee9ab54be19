"""Faults that a simulated endpoint produces on request.

A test of a picker or a client needs endpoints that fail as real ones do, at a time that the test
chooses. A fault has the form ``kind[:value][@condition[,condition]]``: `reset:5` resets the
connection after five tokens, `503:2@0.1` refuses one request in ten with ``retry-after: 2``,
`500@every=2,longer=4000` fails every second request of at least 4,000 bytes. It is given as a
start option, in a request's ``x-sim-fault`` header, or with ``PUT /sim/faults`` while the endpoint
is running; the latter two only if the endpoint was started to accept them.

| kind | value (default) | what the client sees |
| --- | --- | --- |
| 400 to 599 | retry-after, seconds (no header) | that status in vLLM's envelope |
| full | | vLLM's answer with a full queue: 503, or status 200 and an SSE error in a stream |
| error | status in the error (500) | status 200 and an error as body or a stream's first event |
| late-error | tokens (3) | a stream's error event after that many tokens |
| html | | status 200 and an HTML page, immediately |
| empty | | a well-formed answer of one token without text, immediately |
| foreign-model | | a well-formed answer from another model, immediately |
| slow | factor (3) | everything takes that many times longer; in a header, only the answer |
| hang | | a stream gets only its headers, another request nothing |
| mute | | nothing, not even a stream's headers |
| stall | tokens (3) | nothing after that many tokens, or after the first half of a whole body |
| refuse | | the connection is reset before a byte of the answer |
| reset | tokens (3) | the connection is reset after that many tokens |
| cut | tokens (3) | an orderly end of the connection in the middle of the body |
| oom | seconds of outage (1) | the process dies: all connections reset, cache and counters lost |
| closed | seconds (1) | all connections reset, no socket listens; nothing is forgotten |
| health | status (503) | only `/health` fails |
| metrics-frozen | | the metrics page no longer changes |
| metrics-idle | | the page reports no running and no waiting requests |
| metrics-nan | | every value of the page is NaN |
| metrics-huge | MiB (8) | a page of that size |
| metrics-type | | an HTML page |
| metrics-slow | seconds (5) | the page is delayed by that much |
| metrics-status | status (500) | the page fails |

Conditions: a number is the share of requests hit; ``every=N`` hits each N-th request; ``longer=N``
those with a body of at least N bytes; ``with=NAME`` and ``without=NAME`` those with or without that
header. Connections are actually refused (no socket listens) only during an outage of `oom` or
`closed`. `/v1/embeddings` supports the statuses, the generation routes all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from laar.errors import SettingError


class FaultKind(StrEnum):
    """Kinds of faults."""

    STATUS = "status"
    FULL = "full"
    ERROR = "error"
    LATE_ERROR = "late-error"
    HTML = "html"
    EMPTY = "empty"
    FOREIGN_MODEL = "foreign-model"
    SLOW = "slow"
    HANG = "hang"
    MUTE = "mute"
    STALL = "stall"
    REFUSE = "refuse"
    RESET = "reset"
    CUT = "cut"
    OUT_OF_MEMORY = "oom"
    CLOSED = "closed"
    HEALTH = "health"
    METRICS_FROZEN = "metrics-frozen"
    METRICS_IDLE = "metrics-idle"
    METRICS_NAN = "metrics-nan"
    METRICS_HUGE = "metrics-huge"
    METRICS_TYPE = "metrics-type"
    METRICS_SLOW = "metrics-slow"
    METRICS_STATUS = "metrics-status"

    @property
    def standing(self) -> bool:
        """Whether the fault affects the whole endpoint rather than individual requests."""
        return self in _STANDING


_DEFAULTS = {
    FaultKind.ERROR: 500.0,
    FaultKind.LATE_ERROR: 3.0,
    FaultKind.SLOW: 3.0,
    FaultKind.STALL: 3.0,
    FaultKind.RESET: 3.0,
    FaultKind.CUT: 3.0,
    FaultKind.OUT_OF_MEMORY: 1.0,
    FaultKind.CLOSED: 1.0,
    FaultKind.HEALTH: 503.0,
    FaultKind.METRICS_HUGE: 8.0,
    FaultKind.METRICS_SLOW: 5.0,
    FaultKind.METRICS_STATUS: 500.0,
}
_STATUS_VALUED = {FaultKind.ERROR, FaultKind.HEALTH, FaultKind.METRICS_STATUS}
_STANDING = {
    FaultKind.SLOW,
    *(kind for kind in FaultKind if kind.startswith(("health", "metrics-"))),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the requests that it hits.

    Args:
        kind: kind of the fault.
        value: the kind's value; None if it has none.
        share: share of the requests meeting the other conditions that are hit.
        status: HTTP status, for the kind STATUS.
        every: hit each N-th request; 1 hits all.
        longer_bytes: only requests with a body of at least this length.
        without: only requests without this header, in lower case; empty for all.
        having: only requests with this header, in lower case; empty for all.
    """

    kind: FaultKind
    value: float | None = None
    share: float = 1.0
    status: int = 0
    every: int = 1
    longer_bytes: int = 0
    without: str = ""
    having: str = ""


def parse_fault(text: str) -> Fault:
    """Parse ``kind[:value][@condition[,condition]]``.

    Raises:
        SettingError: the text is invalid; the message names the wrong part and the allowed values.
    """
    head, _, conditions = text.strip().partition("@")
    name, _, value_text = head.partition(":")
    status = int(name) if name.isascii() and name.isdigit() and len(name) == 3 else 0
    try:
        kind = FaultKind.STATUS if 400 <= status <= 599 else FaultKind(name)
        if kind is FaultKind.STATUS and not status:
            raise ValueError
    except ValueError:
        known = ", ".join(kind for kind in FaultKind if kind is not FaultKind.STATUS)
        raise SettingError(
            f"fault {text!r}: {name!r} is not 400 to 599 or one of {known}"
        ) from None
    if value_text and kind is not FaultKind.STATUS and kind not in _DEFAULTS:
        raise SettingError(f"fault {text!r}: {name} takes no value")
    try:
        value = float(value_text) if value_text else _DEFAULTS.get(kind)
        fault = Fault(kind, value, status=status)
        for condition in conditions.split(",") if "@" in text else ():
            fault = _narrowed(fault, condition)
    except ValueError:
        raise SettingError(
            f"fault {text!r}: write kind[:number]"
            "[@share,every=N,longer=BYTES,with=HEADER,without=HEADER]"
        ) from None
    if not (value is None or 0 < value < 1e6) or not 0 < fault.share <= 1 or fault.every < 1:
        raise SettingError(f"fault {text!r}: the value must be above 0, the share in (0, 1]")
    if kind in _STATUS_VALUED and not (value == int(value or 0) and 400 <= (value or 0) <= 599):
        raise SettingError(f"fault {text!r}: the value is a status, 400 to 599")
    return fault


def _narrowed(fault: Fault, condition: str) -> Fault:
    name, sign, value = condition.partition("=")
    if not sign:
        return replace(fault, share=float(name))
    if name == "every":
        return replace(fault, every=int(value))
    if name == "longer":
        return replace(fault, longer_bytes=int(value))
    if name == "with" and value:
        return replace(fault, having=value.lower())
    if name == "without" and value:
        return replace(fault, without=value.lower())
    raise ValueError(condition)


class FaultBook:
    """The current faults of an endpoint; decides which request gets which.

    Args:
        faults: the initial faults.
        rng: draws the requests to hit if a fault has a share.
    """

    def __init__(self, faults: Sequence[Fault], rng: random.Random) -> None:
        self._rng = rng
        self.requests = 0
        self.hit = 0
        self.set(faults)

    def set(self, faults: Sequence[Fault]) -> None:
        """Replace the faults and reset the counts."""
        self.faults = tuple(faults)
        self._seen = [0] * len(self.faults)
        self.requests = self.hit = 0

    def draw(self, *, body_bytes: int = 0, headers: Collection[str] = ()) -> Fault | None:
        """Return the next request's fault, if any; `headers` are names in lower case."""
        self.requests += 1
        for index, fault in enumerate(self.faults):
            if fault.kind.standing or not self._is_hit(index, fault, body_bytes, headers):
                continue
            self.hit += 1
            return fault
        return None

    def _is_hit(self, index: int, fault: Fault, body_bytes: int, headers: Collection[str]) -> bool:
        if body_bytes < fault.longer_bytes or (fault.without and fault.without in headers):
            return False
        if fault.having and fault.having not in headers:
            return False
        self._seen[index] += 1
        return self._seen[index] % fault.every == 0 and self._rng.random() < fault.share

    def standing(self, accept: Callable[[FaultKind], bool]) -> Fault | None:
        """Return the first fault of the whole endpoint whose kind is accepted, if any."""
        return next((f for f in self.faults if f.kind.standing and accept(f.kind)), None)

    def slow_factor(self) -> float:
        """Return the factor by which the engine runs slower than its profile."""
        factor = 1.0
        for fault in self.faults:
            if fault.kind is FaultKind.SLOW:
                factor *= fault.value or 1
        return factor
