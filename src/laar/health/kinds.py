"""Classify answers by what, if anything, they show: that the endpoint works, is full, or fails.

A refusal is one of three things, which must be kept apart. A client error says nothing about the
endpoint. A full engine is healthy and needs a pause, not an investigation: breakers that took "no
room for this prompt" for a failure answered 503 to most real agent traffic. Only other refusals
are failures.

An apparent client error may still be the fault of one endpoint: a missing model, or a different API
key (401 to 404). Those are `DENIED`, and siblings' answers decide (`laar.health.recent`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Ways to fail; also label values of the metric."""

    STATUS = "status"
    """Any 5xx but 500, 501, 505 and 529: any other request would have got the same answer."""
    ERROR = "error"
    """500: broken, or overwhelmed by this request."""
    EVENT = "error-event"
    """An error in an answer that began with 200."""
    DENIED = "denied"
    """401, 402, 403 or 404 while siblings accept."""
    REJECTED = "rejected"
    """Any other 4xx, a 3xx, 501 or 505, to requests or a probe that siblings accept."""
    CUT = "cut"
    """An answer that was cut off, unlike siblings' answers."""
    EMPTY = "empty"
    """An empty answer, unlike siblings' answers."""
    TYPE = "content-type"
    """An answer of a type other than requested (an HTML page), unlike siblings' answers."""
    UNREADABLE = "unreadable"
    """An answer that is neither JSON nor events, unlike siblings' answers."""
    MODEL = "other-model"
    """An answer that names neither the requested model nor the model that siblings name."""
    SHORT = "short"
    """An answer of a few characters, where siblings write more."""
    REPEATED = "repeated"
    """One text for different prompts, or one token throughout, unlike siblings' answers."""
    HANG = "hang"
    """Silence for far longer than siblings take to answer."""
    RETRIED = "retried"
    """Envoy retried at another endpoint, without reporting why."""
    FULL = "full"
    """429, or a full queue: never opens the breaker."""
    REQUEST = "request"
    """Any of the above for which the request or its adapter is at fault, as others are answered."""


GOOD = "good"

FAILURES = frozenset((Kind.STATUS, Kind.ERROR, Kind.EVENT))
"""Reported failures that may be the request's fault."""

DULL = frozenset((Kind.SHORT, Kind.REPEATED))
"""Kinds of answers that clients often ask for (labels, numbers), so a single one shows nothing."""

USELESS = DULL | {Kind.EMPTY, Kind.TYPE, Kind.UNREADABLE, Kind.MODEL}
"""Kinds of answers that begin with 200 but are useless to any client. A request may be the cause
(by asking for an empty answer), so siblings are compared."""


@dataclass(slots=True, kw_only=True)
class Reply:
    """An endpoint's reply.

    Args:
        retry_after_s: value of the header; None if it is missing.
        text: first bytes of the body, if they were read.
        event: the text is an error inside an answer that began with 200.
        found: what the headers or body of an answer that began with 200 show: `GOOD`, or a kind of
            failure; None while unknown.
        detail: the content type found instead of the expected one.
        model: model name in the answer, if it differs from the requested one.
        said: digest of a good answer's beginning, by a key of this process; 0 if unknown.
        seems: `SHORT` or `REPEATED` if a good answer looks so, as its client may want; else None.
    """

    status: int
    retry_after_s: float | None = None
    text: bytes = b""
    event: bool = False
    found: Kind | str | None = None
    detail: str = ""
    model: str = ""
    said: int = 0
    seems: Kind | None = None


_CODE = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_FULL = re.compile(
    rb"queue[^.]{0,40}\bfull|full[^.]{0,40}\bqueue|overloaded|too many requests|rate.?limit"
    rb"|max.num.queued|maximum number of (?:queued|waiting) requests|at capacity"
    rb"|currently busy",
    re.IGNORECASE,
)
_CLIENTS = re.compile(rb"BadRequest|invalid_request|ValidationError|NotFoundError", re.IGNORECASE)
_DENIALS = (401, 402, 403, 404)
FULL_STATUSES = (429, 529)
UNKNOWN_TO_ENGINE = (501, 505)


def judge(reply: Reply) -> Kind | str | None:
    """Return a kind of failure, `GOOD`, or None if the reply says nothing about the endpoint."""
    status, text = reply.status, reply.text
    if reply.found is not None:
        return reply.found
    if reply.event:
        code = _CODE.search(text)
        status = int(code[1]) if code else 0
        if status in FULL_STATUSES or _FULL.search(text):
            return Kind.FULL
        if 400 <= status < 500 or _CLIENTS.search(text):
            return None
        return Kind.EVENT
    if 200 <= status < 300:
        return GOOD
    if status in FULL_STATUSES:
        return Kind.FULL
    if status in _DENIALS:
        return Kind.DENIED
    if status < 500 or status in UNKNOWN_TO_ENGINE:
        return None  # a 3xx sends the request elsewhere, perhaps for a slash in its path
    if status == 503 and (reply.retry_after_s is not None or _FULL.search(text)):
        return Kind.FULL
    return Kind.ERROR if status == 500 else Kind.STATUS
