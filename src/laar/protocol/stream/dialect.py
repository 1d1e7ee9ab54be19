"""What a caller can read and do, known from the first message of a stream: `DIALECTS`.

laar's own Envoys announce themselves: their routes tell how many attempts they make. They read a
list of endpoints, let the picker change modes and timeouts, and match their routes again by the
decision. Of any other gateway only what the protocol promises is assumed. It may read one address
only, in the header or in the metadata, so it gets both. It has matched its route by the headers, so
none of those that a route may match is removed, and the route is kept.

How bodies pass is announced by all, separately for requests and answers:

* Buffered: Envoy sends a body as one message, and holds everything until the picker replies.
* Streamed: it sends chunks, and keeps each until the picker replies, so nothing is lost if the
  picker fails. It forwards a request's headers first: the body comes too late for the decision.
* Full duplex: it sends chunks and keeps nothing, so the picker sends all of them back. The
  request's headers are held until the picker replies.
* Not at all. laar's own Envoys then send an answer's body only if the picker asks for it.

laar's own Envoys may also keep the request's headers. The body is then the first message, and only
metadata gives the destination.

A dialect has no state: it appends actions when the machine calls it.
"""

from __future__ import annotations

from laar.protocol.events import (
    SHAPES,
    Action,
    AnswerBody,
    AnswerHeaders,
    AnswerTrailers,
    BodyMode,
    Direction,
    Shape,
)
from laar.protocol.stream.body import Collected, send_chunks

_REQUEST, _RESPONSE = Direction.REQUEST, Direction.RESPONSE


class Dialect:
    """One kind of caller; methods append actions to `out`.

    Args:
        shape: how it passes bodies.
        is_own: whether it is one of laar's own Envoys.
        keeps_headers: whether Envoy keeps the request's headers; its routes then remove the control
            headers.
    """

    def __init__(self, shape: Shape, *, is_own: bool, keeps_headers: bool = False) -> None:
        self.is_own, self.keeps_headers = is_own, keeps_headers
        self.request_mode = shape.request
        self.shows_requests = shape.request in (BodyMode.BUFFERED, BodyMode.DUPLEX)  # in time
        self.sends_whole_bodies = shape.request is BodyMode.BUFFERED
        self.sends_whole_answers = shape.answer is BodyMode.BUFFERED
        self.shows_answers = shape.answer is not BodyMode.NONE
        self.keeps_answers = shape.answer is not BodyMode.DUPLEX
        self.keeps_bodies = self.keeps_answers and shape.request is not BodyMode.DUPLEX
        """Whether Envoy can finish a request by itself that the picker has decided on."""

    def send(self, decided: AnswerHeaders, body: Collected, out: list[Action]) -> None:
        """Send the request; `decided` carries the decision, as the reply to headers or body."""
        if self.request_mode is BodyMode.DUPLEX:
            out.append(decided)
            if body.data is None:
                return
            end = body.is_complete and not body.trailers
            send_chunks(_REQUEST, bytes(body.data), end=end, out=out)
            if body.trailers:
                out.append(AnswerTrailers(_REQUEST))
            return
        if body.data is None and not self.keeps_headers:
            shown = body.is_complete and self.shows_answers and not decided.skip_body
            decided.skip_body = self.is_own and not shown
            out.append(decided)
            return
        data = bytes(body.data) if body.data is not None and body.changed else None
        if data is not None and not self.keeps_headers:
            decided.set_headers.append(("content-length", str(len(data))))
        says = decided.destination or decided.model is not None
        out.append(AnswerBody(_REQUEST, data, True, decided if says else None))

    def answer_headers(
        self,
        headers: list[tuple[str, str]],
        forged: tuple[str, ...],
        out: list[Action],
        *,
        read: bool,
    ) -> None:
        """Pass the response headers with changes; `read` requests the response body."""
        if forged:
            own = {name for name, _ in headers}  # these replace forged ones
            forged = tuple(name for name in dict.fromkeys(forged) if name not in own)
        out.append(AnswerHeaders(_RESPONSE, headers, forged, read_answer=read))

    def pass_request(self, data: bytes, out: list[Action], *, end: bool) -> None:
        """Pass on another chunk of the request's body."""
        if self.request_mode is BodyMode.DUPLEX:
            send_chunks(_REQUEST, data, end=end, out=out)
        else:
            out.append(AnswerBody(_REQUEST, None, end))

    def pass_answer(
        self, chunks: int, data: bytes, out: list[Action], *, end: bool, same: bool
    ) -> None:
        """Pass on chunks of the answer's body as `data`; `same` if the bytes are unchanged."""
        if not self.keeps_answers:
            send_chunks(_RESPONSE, data, end=end, out=out)
            return
        if same:
            out.append(AnswerBody(_RESPONSE, None, end))
            return
        for number in range(chunks):
            given = b"" if number else data
            out.append(AnswerBody(_RESPONSE, given, end, replaces=True))


DIALECTS = {
    (shape, is_own, keeps): Dialect(shape, is_own=is_own, keeps_headers=keeps)
    for shape in SHAPES.values()
    for is_own in (False, True)
    for keeps in (False, True)
}
"""Dialects by what a stream's first message shows: the body modes, whether it gives a number of
attempts, and whether it is the body."""

OF_OTHERS = {shape: DIALECTS[shape, False, False] for shape in SHAPES.values()}
"""Dialects of gateways other than laar's own, by the body modes."""
