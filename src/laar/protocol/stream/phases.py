"""The protocol of one stream as data: its phases, and the events that move between them.

Request and answer overlap: an answer may begin before a long upload ends. So a stream has two
halves, each with its own phase, and an event moves one of them. The exception is an event that
moves the request half to OVER (a refusal, the stream's end): it also ends the response half.

An event without an entry in the current phase is counted and ignored, so the duplicate end of
stream that some Envoys send is harmless, as is an answer without a request.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from laar.protocol import events as ev


class RequestPhase(enum.Enum):
    """Phases of the request half."""

    __hash__ = object.__hash__  # Enum.__hash__ is slow, and each event looks up two phases

    HEADERS = "waits for the request's first message"
    BODY = "collects the request's body"
    READING = "waits for a long body to be read"
    DECIDING = "waits for the decision"
    PASSING = "passes the rest of the body"
    SENT = "the whole request is with the endpoint"
    OVER = "refused, or the stream is closed"


class ResponsePhase(enum.Enum):
    """Phases of the response half."""

    __hash__ = object.__hash__

    HEADERS = "waits for the answer's headers"
    ANSWER = "passes the answer"
    OVER = "answered, refused, or the stream is closed"


Phase = RequestPhase | ResponsePhase

_Q, _A = RequestPhase, ResponsePhase

TRANSITIONS: Mapping[Phase, Mapping[type, tuple[Phase, ...]]] = {
    _Q.HEADERS: {
        ev.RequestHeaders: (_Q.BODY, _Q.READING, _Q.DECIDING, _Q.PASSING, _Q.SENT, _Q.OVER),
        ev.Failed: (_Q.HEADERS, _Q.PASSING, _Q.SENT, _Q.OVER),
        ev.Closed: (_Q.OVER,),
    },
    _Q.BODY: {
        ev.RequestBody: (_Q.BODY, _Q.READING, _Q.DECIDING, _Q.PASSING, _Q.SENT, _Q.OVER),
        ev.RequestTrailers: (_Q.READING, _Q.DECIDING, _Q.SENT, _Q.OVER),
        ev.Failed: (_Q.PASSING, _Q.SENT, _Q.OVER),
        ev.Closed: (_Q.OVER,),
    },
    _Q.READING: {
        ev.HasRead: (_Q.DECIDING, _Q.SENT, _Q.OVER),
        ev.Failed: (_Q.SENT, _Q.OVER),
        ev.Closed: (_Q.OVER,),
    },
    _Q.DECIDING: {
        ev.Decided: (_Q.PASSING, _Q.SENT),
        ev.Refused: (_Q.PASSING, _Q.SENT, _Q.OVER),
        ev.Failed: (_Q.PASSING, _Q.SENT, _Q.OVER),
        ev.Closed: (_Q.OVER,),
    },
    _Q.PASSING: {
        ev.RequestBody: (_Q.PASSING, _Q.SENT),
        ev.RequestTrailers: (_Q.SENT,),
        ev.Failed: (_Q.PASSING,),
        ev.Closed: (_Q.OVER,),
    },
    _Q.SENT: {
        ev.RequestTrailers: (_Q.SENT,),  # after a buffered body
        ev.Failed: (_Q.SENT,),
        ev.Closed: (_Q.OVER,),
    },
    _Q.OVER: {ev.Failed: (_Q.OVER,), ev.Closed: (_Q.OVER,)},
    _A.HEADERS: {ev.ResponseHeaders: (_A.ANSWER, _A.OVER)},
    _A.ANSWER: {ev.ResponseBody: (_A.ANSWER, _A.OVER), ev.ResponseTrailers: (_A.OVER,)},
    _A.OVER: {},
}
"""Allowed next phases by phase and event."""
