"""Envoy's body modes, detected from the first message of a stream.

* Native: Envoy sends the request's headers, then its body as one message, and the answer's body
  only if the picker asks for it.
* Streamed: like native, but Envoy sends every answer's body, in chunks. It keeps each chunk until
  the picker replies, so nothing is lost if the picker fails.
* Kept headers: like native or streamed, but Envoy does not send the request's headers. The body is
  the first message, and only metadata gives the destination.
* Gateway (full duplex): Envoy sends the headers, then the body in chunks, and the same for every
  answer. It keeps nothing, so the picker sends all chunks back.

A dialect has no state: it appends actions when the machine calls it.
"""

from __future__ import annotations

from laar.protocol.events import (
    Action,
    AnswerBody,
    AnswerHeaders,
    AnswerTrailers,
    Direction,
    Shape,
)
from laar.protocol.stream.body import Collected, send_chunks

_REQUEST, _RESPONSE = Direction.REQUEST, Direction.RESPONSE


class Dialect:
    """The native dialect, and base of the others; methods append actions to `out`.

    Args:
        shows_answers: whether the body of each answer passes through the picker.
        keeps_headers: whether Envoy keeps the request's headers; its routes then remove the control
            headers.
    """

    sends_whole_bodies = True
    """Whether request bodies arrive as one message."""

    def __init__(self, *, shows_answers: bool, keeps_headers: bool = False) -> None:
        self.shows_answers = shows_answers
        self.keeps_headers = keeps_headers

    def await_body(self, out: list[Action]) -> None:
        """Answer the request's headers before the decision, which needs the body."""
        out.append(AnswerHeaders(_REQUEST, []))

    def send(self, decided: AnswerHeaders, body: Collected, out: list[Action]) -> None:
        """Send the request; `decided` carries the decision, as the reply to headers or body."""
        if body.data is None and not self.keeps_headers:
            decided.skip_body = not (body.is_complete and self.shows_answers)
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
        out.append(AnswerBody(_REQUEST, None, end))

    def pass_answer(
        self, chunks: int, data: bytes, out: list[Action], *, end: bool, same: bool
    ) -> None:
        """Pass on chunks of the answer's body as `data`; `same` if the bytes are unchanged."""
        if same:
            out.append(AnswerBody(_RESPONSE, None, end))
            return
        for number in range(chunks):
            given = b"" if number else data
            out.append(AnswerBody(_RESPONSE, given, end, replaces=True))


class _Gateway(Dialect):
    """An Envoy in full duplex: it sends every byte, and forwards the bytes it gets back."""

    sends_whole_bodies = False

    def await_body(self, out: list[Action]) -> None:
        """Append nothing: the headers are answered with the decision."""

    def send(self, decided: AnswerHeaders, body: Collected, out: list[Action]) -> None:
        out.append(decided)
        if body.data is None:
            return
        end = body.is_complete and not body.trailers
        send_chunks(_REQUEST, bytes(body.data), end=end, out=out)
        if body.trailers:
            out.append(AnswerTrailers(_REQUEST))

    def pass_request(self, data: bytes, out: list[Action], *, end: bool) -> None:
        send_chunks(_REQUEST, data, end=end, out=out)

    def pass_answer(
        self, chunks: int, data: bytes, out: list[Action], *, end: bool, same: bool
    ) -> None:
        send_chunks(_RESPONSE, data, end=end, out=out)


NATIVE = Dialect(shows_answers=False)
DIALECTS: dict[Shape, Dialect] = {
    Shape.NATIVE: NATIVE,
    Shape.STREAMED: Dialect(shows_answers=True),
    Shape.GATEWAY: _Gateway(shows_answers=True),
}
"""Dialects by the shape that Envoy announces, if it sends the request's headers."""

KEPT_HEADERS: dict[Shape, Dialect] = {
    shape: Dialect(shows_answers=shape is not Shape.NATIVE, keeps_headers=True) for shape in Shape
}
"""Dialects by shape, for Envoys that keep the request's headers; none announces `GATEWAY`."""
