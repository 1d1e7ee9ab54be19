"""The inputs and outputs of a stream machine: events and actions, plain values.

They are made for every message, so they are not frozen; no code changes one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from laar.core.decision import Completion, Decision
from laar.core.request import Api, Request
from laar.errors import RequestError
from laar.health import Reply
from laar.protocol.openai import Body


class Shape(enum.Enum):
    """The body modes that Envoy announced."""

    NATIVE = "native"
    STREAMED = "streamed"
    GATEWAY = "gateway"


class Direction(enum.Enum):
    """The half of the exchange that a message belongs to."""

    REQUEST = "request"
    RESPONSE = "response"


# -- events ------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestHeaders:
    """The first message of nearly every stream.

    `count` and `size_bytes` are of all headers, names that repeat included. `attempts` is how often
    this Envoy tries a request; 0 where it does not report that.
    """

    headers: Mapping[str, str]
    end: bool
    shape: Shape
    subset: frozenset[str] | None = None
    pool: str = ""
    count: int = 0
    size_bytes: int = 0
    attempts: int = 0


@dataclass(slots=True)
class WholeRequest:
    """The only message of a request whose headers Envoy keeps: its body, and what was asked for.

    `headers` holds those of the attributes (`laar.protocol.headers.attributes_read`) it has.
    """

    headers: Mapping[str, str]
    pool: str
    data: bytes
    subset: frozenset[str] | None = None
    attempts: int = 0
    shape: Shape = Shape.NATIVE


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
class HasRead:
    """The result of reading a long body, or the reason why it cannot be read: answers `Read`."""

    read: Body | RequestError


@dataclass(slots=True)
class Decided:
    """The decision: one answer to `Ask`."""

    decision: Decision
    overhead_us: int


@dataclass(slots=True)
class Refused:
    """No endpoint for this request: the other answer to `Ask`."""

    error: RequestError


@dataclass(slots=True)
class ResponseHeaders:
    """The endpoint's headers, or those of an answer that Envoy made itself.

    Args:
        status: status code; None when there is none.
        streamed: the body is an event stream.
        count: how many headers there are.
        end: no body follows.
        served: the endpoint that served, as Envoy reports it.
        attempts: how many there were; 0 where Envoy does not report it.
        details: source of the status, as Envoy reports it; empty where it does not.
        shape: the shape, if this is the stream's first message; else None.
        retry_after_s: seconds in ``retry-after``; None without one.
        media_type: type of the body, in lower case; empty where none is given.
        encoded: the body is compressed.
        forged: names of headers that only laar and Envoy may send to clients.
    """

    status: int | None
    streamed: bool = False
    count: int = 0
    end: bool = False
    served: str = ""
    attempts: int = 0
    details: str = ""
    shape: Shape | None = None
    retry_after_s: float | None = None
    media_type: str = ""
    encoded: bool = False
    forged: tuple[str, ...] = ()


@dataclass(slots=True)
class Noted:
    """The reservation is with the endpoint that serves, if it is a known one: answers `Served`."""


@dataclass(slots=True)
class ResponseBody:
    """A piece of the answer."""

    data: bytes
    end: bool


@dataclass(slots=True)
class ResponseTrailers:
    """The answer ends here instead of with the last piece of its body."""


@dataclass(slots=True)
class Failed:
    """The picker failed while it handled an event, so there will be no decision."""


@dataclass(slots=True)
class Closed:
    """The stream is over; comes once, last."""


Event = (
    RequestHeaders
    | WholeRequest
    | RequestBody
    | RequestTrailers
    | HasRead
    | Decided
    | Refused
    | ResponseHeaders
    | Noted
    | ResponseBody
    | ResponseTrailers
    | Failed
    | Closed
)

# -- actions -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """Read this long body with `laar.protocol.openai.try_read`, on a thread; feed `HasRead`."""

    api: Api
    body: bytes


@dataclass(slots=True)
class Ask:
    """Decide on this request, then feed `Decided` or `Refused`."""

    request: Request


class Patience(NamedTuple):
    """How long an endpoint may send nothing, in seconds.

    Args:
        silence_s: ever, one of `laar.protocol.headers.SILENCES_S`; None leaves that to Envoy.
        begin_s: before its answer's head, one of `laar.protocol.headers.BEGINS_S`; None for no
            other bound than the first.
        once: no other endpoint is asked after it, unless it can't be connected to.
    """

    silence_s: int | None = None
    begin_s: int | None = None
    once: bool = False


_WITHOUT_END = Patience()


@dataclass(slots=True)
class AnswerHeaders:
    """Answer a headers message. With `destination` it is the decision's answer.

    `read_answer` asks Envoy to show this request's response body; `skip_body` not to send its
    request body (native shape only). `engine_headers` are among `set_headers`, for an Envoy whose
    routes set them.
    """

    direction: Direction
    set_headers: list[tuple[str, str]]
    remove_headers: tuple[str, ...] = ()
    destination: str = ""
    read_answer: bool = False
    skip_body: bool = False
    patience: Patience = _WITHOUT_END
    engine_headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class AnswerBody:
    """Answer a body message.

    In the native shape `data` is None for an unchanged body; on the request's it carries the
    decision's headers, `patience` and `engine_headers`. In the streamed shape it may take the place
    of a piece that Envoy still has (`replaces`). In the gateway shape every byte goes back in
    `data`.
    """

    direction: Direction
    data: bytes | None
    end: bool
    set_headers: list[tuple[str, str]]
    remove_headers: tuple[str, ...] = ()
    destination: str = ""
    patience: Patience = _WITHOUT_END
    engine_headers: tuple[tuple[str, str], ...] = ()
    replaces: bool = False


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
class Attempted:
    """These endpoints failed before the one that answers, or before Envoy gave up; oldest first.

    An endpoint is listed once per failure.
    """

    decision: Decision
    failed: tuple[str, ...]


@dataclass(slots=True)
class Served:
    """This endpoint serves, by Envoy's own choice: move the reservation, then feed `Noted`.

    The response headers name the endpoint, so they wait for it.
    """

    decision: Decision
    address: str


@dataclass(slots=True)
class Replied:
    """The endpoint's reply, for health; `read` when the body of its answer is seen.

    Comes once with the status, and again should an error follow in the answer.
    """

    decision: Decision
    reply: Reply
    read: bool


@dataclass(slots=True)
class Answering:
    """The answer's body was seen to begin, or to go on; `ok` when it is no refusal."""

    decision: Decision
    ok: bool


@dataclass(slots=True)
class Stored:
    """The endpoint keeps the answer that has begun under this id; comes once, before the end."""

    decision: Decision
    response_id: str


@dataclass(slots=True)
class Ended:
    """The request's life is over."""

    decision: Decision
    completion: Completion


Action = (
    Read
    | Ask
    | AnswerHeaders
    | AnswerBody
    | AnswerTrailers
    | Immediate
    | Attempted
    | Served
    | Replied
    | Answering
    | Stored
    | Ended
)
