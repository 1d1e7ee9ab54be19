"""What goes into a stream machine and what comes out of it: events and actions, plain values.

They are made for every message, so they are not frozen; nobody changes one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from laar.core.decision import Completion, Decision
from laar.core.request import Request
from laar.errors import RequestError
from laar.health import Reply

__all__ = [
    "Action",
    "AnswerBody",
    "AnswerHeaders",
    "AnswerTrailers",
    "Answering",
    "Ask",
    "Closed",
    "Decided",
    "Direction",
    "Ended",
    "Event",
    "Immediate",
    "Refused",
    "Replied",
    "RequestBody",
    "RequestHeaders",
    "RequestTrailers",
    "ResponseBody",
    "ResponseHeaders",
    "ResponseTrailers",
    "Served",
    "Shape",
    "WholeRequest",
]


class Shape(enum.Enum):
    """Which of the two body modes Envoy announced."""

    NATIVE = "native"
    GATEWAY = "gateway"


class Direction(enum.Enum):
    """Which half of the exchange a message belongs to."""

    REQUEST = "request"
    RESPONSE = "response"


# -- events ------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestHeaders:
    """The first message of nearly every stream.

    `count` and `size_bytes` are of all headers, names that repeat included.
    """

    headers: Mapping[str, str]
    end: bool
    shape: Shape
    subset: frozenset[str] | None = None
    pool: str = ""
    count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class WholeRequest:
    """The only message of a request whose headers Envoy keeps: its body, and what was asked for.

    `headers` holds those of the attributes (`laar.protocol.headers.attributes_read`) it has.
    """

    headers: Mapping[str, str]
    pool: str
    data: bytes
    subset: frozenset[str] | None = None


@dataclass(slots=True)
class RequestBody:
    """The whole body (native) or a piece of it (gateway)."""

    data: bytes
    end: bool
    subset: frozenset[str] | None = None


@dataclass(slots=True)
class RequestTrailers:
    """The request ends here instead of with the last piece of its body."""


@dataclass(slots=True)
class Decided:
    """The answer to `Ask`."""

    decision: Decision
    overhead_us: int


@dataclass(slots=True)
class Refused:
    """The other answer to `Ask`."""

    error: RequestError


@dataclass(slots=True)
class ResponseHeaders:
    """The endpoint's headers, or those of an answer that Envoy made itself.

    Args:
        status: as a number; None when there is none.
        streamed: the body is an event stream.
        count: how many headers there are.
        end: no body follows.
        served: the endpoint that Envoy says has served.
        retry_after_s: what ``retry-after`` says; None without one, or for a date.
    """

    status: int | None
    streamed: bool = False
    count: int = 0
    end: bool = False
    served: str = ""
    retry_after_s: float | None = None


@dataclass(slots=True)
class ResponseBody:
    """A piece of the answer."""

    data: bytes
    end: bool


@dataclass(slots=True)
class ResponseTrailers:
    """The answer ends here instead of with the last piece of its body."""


@dataclass(slots=True)
class Closed:
    """The stream is over; comes once, last."""


Event = (
    RequestHeaders
    | WholeRequest
    | RequestBody
    | RequestTrailers
    | Decided
    | Refused
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
    | Closed
)

# -- actions -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Ask:
    """Decide on this request, then feed `Decided` or `Refused`."""

    request: Request


@dataclass(slots=True)
class AnswerHeaders:
    """Answer a headers message. With `destination` it is the decision's answer.

    `read_answer` asks Envoy to show this request's response body; `skip_body` not to send its
    request body (native shape only).
    """

    direction: Direction
    set_headers: list[tuple[str, str]]
    remove_headers: tuple[str, ...] = ()
    destination: str = ""
    read_answer: bool = False
    skip_body: bool = False


@dataclass(slots=True)
class AnswerBody:
    """Answer a body message.

    In the native shape `data` is None for an unchanged body; on the request's it carries the
    decision's headers. In the gateway shape every byte goes back in `data`.
    """

    direction: Direction
    data: bytes | None
    end: bool
    set_headers: list[tuple[str, str]]
    remove_headers: tuple[str, ...] = ()
    destination: str = ""


@dataclass(slots=True)
class AnswerTrailers:
    """Answer a trailers message."""

    direction: Direction


@dataclass(slots=True)
class Immediate:
    """Answer the client without an endpoint; nothing follows."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class Served:
    """This endpoint really served, after retries of Envoy's own."""

    decision: Decision
    address: str


@dataclass(slots=True)
class Replied:
    """What the endpoint said, for health; `read` when the body of its answer is seen.

    Comes once with the status, and again should an error follow in the answer.
    """

    decision: Decision
    reply: Reply
    read: bool


@dataclass(slots=True)
class Answering:
    """The first byte of the answer's body was seen; `ok` when it is no refusal."""

    decision: Decision
    ok: bool


@dataclass(slots=True)
class Ended:
    """The request's life is over."""

    decision: Decision
    completion: Completion


Action = (
    Ask
    | AnswerHeaders
    | AnswerBody
    | AnswerTrailers
    | Immediate
    | Served
    | Replied
    | Answering
    | Ended
)
