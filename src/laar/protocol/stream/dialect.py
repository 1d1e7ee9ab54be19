"""The ways in which an Envoy shows an exchange, known by its stream's first message.

* Native: the request's headers first, then its body as one message; the answer's body only where
  the picker asks to read it.
* Streamed: the same, but the body of every answer in pieces. Envoy keeps each piece until it is
  answered, so that nothing is lost with the picker.
* Kept headers: either of these, but Envoy keeps the request's headers. The body is the first
  message, and the metadata alone names the destination.
* Gateway (full duplex): the body in pieces, all of which the picker sends back, after the headers;
  the same of every answer. Envoy keeps nothing.

A dialect has no state. It writes the actions, and the machine decides when.
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
from laar.protocol.stream.body import Collected, send_pieces
from laar.protocol.stream.contract_headers import headers_of_request
from laar.protocol.stream.sending import Sending

_REQUEST, _RESPONSE = Direction.REQUEST, Direction.RESPONSE


class Dialect:
    """How one Envoy is spoken to; each method adds actions to `out`. Here the native one.

    Args:
        shows_answers: whether the body of each answer passes through the picker.
    """

    sends_whole_bodies = True
    """Whether a request's body is one message."""
    reads_by_server = False
    """Whether the choice which answers are read waits for the endpoint that answers."""

    def __init__(self, *, shows_answers: bool) -> None:
        self.shows_answers = shows_answers

    def await_body(self, out: list[Action]) -> None:
        """Answer the request's headers while the decision needs the body."""
        out.append(AnswerHeaders(_REQUEST, []))

    def send(self, sending: Sending, out: list[Action]) -> None:
        """Send the request with its decision."""
        headers, remove = headers_of_request(sending)
        if sending.body is None:
            out.append(
                AnswerHeaders(
                    _REQUEST,
                    headers,
                    remove,
                    sending.destination,
                    skip_body=not sending.is_complete,
                    patience=sending.patience,
                    engine_headers=sending.engine_headers,
                )
            )
            return
        if sending.changed:
            headers.append(("content-length", str(len(sending.body))))
        out.append(
            AnswerBody(
                _REQUEST,
                sending.body if sending.changed else None,
                True,
                headers,
                remove,
                sending.destination,
                sending.patience,
                sending.engine_headers,
            )
        )

    def stand_aside(self, body: Collected, out: list[Action]) -> None:
        """Pass the request on as it came, and read its body."""
        if body.take() is None:
            out.append(AnswerHeaders(_REQUEST, [], skip_body=not body.is_complete))
        else:
            out.append(AnswerBody(_REQUEST, None, True, []))

    def answer_headers(
        self,
        headers: list[tuple[str, str]],
        forged: tuple[str, ...],
        out: list[Action],
        *,
        read: bool,
    ) -> None:
        """Pass the answer's headers, with some added and others off; `read` asks for its body."""
        out.append(
            AnswerHeaders(_RESPONSE, headers, forged and _but(forged, headers), read_answer=read)
        )

    def pass_request(self, data: bytes, out: list[Action], *, end: bool) -> None:
        """Pass a further piece of the request's body."""
        out.append(AnswerBody(_REQUEST, None, end, []))

    def pass_answer(
        self, pieces: int, data: bytes, out: list[Action], *, end: bool, same: bool
    ) -> None:
        """Pass so many pieces of the answer's body as `data`, which may be the `same` bytes."""
        if same:
            out.append(AnswerBody(_RESPONSE, None, end, []))
            return
        for number in range(pieces):
            given = b"" if number else data
            out.append(AnswerBody(_RESPONSE, given, end, [], replaces=True))


class _KeptHeaders(Dialect):
    """The same for an Envoy that keeps the headers; its routes remove the control headers."""

    def __init__(self, *, shows_answers: bool) -> None:
        super().__init__(shows_answers=shows_answers)
        self.reads_by_server = not shows_answers

    def send(self, sending: Sending, out: list[Action]) -> None:
        out.append(
            AnswerBody(
                _REQUEST,
                sending.body if sending.changed else None,
                True,
                [],
                (),
                sending.destination,
                sending.patience,
                sending.engine_headers,
            )
        )

    def stand_aside(self, body: Collected, out: list[Action]) -> None:
        body.take()
        out.append(AnswerBody(_REQUEST, None, True, []))


class _Gateway(Dialect):
    """Envoy hands every byte over, in full duplex, and forwards the bytes that it gets back."""

    sends_whole_bodies = False

    def await_body(self, out: list[Action]) -> None:
        """Await the body: the headers are answered with the decision."""

    def send(self, sending: Sending, out: list[Action]) -> None:
        headers, remove = headers_of_request(sending)
        out.append(
            AnswerHeaders(
                _REQUEST,
                headers,
                remove,
                sending.destination,
                patience=sending.patience,
                engine_headers=sending.engine_headers,
            )
        )
        if sending.body is not None:
            _send_all(sending.body, out, complete=sending.is_complete, trailers=sending.trailers)

    def stand_aside(self, body: Collected, out: list[Action]) -> None:
        out.append(AnswerHeaders(_REQUEST, []))
        data = body.take()
        if data is not None:
            _send_all(data, out, complete=body.is_complete, trailers=body.trailers)

    def pass_request(self, data: bytes, out: list[Action], *, end: bool) -> None:
        send_pieces(_REQUEST, data, end=end, out=out)

    def pass_answer(
        self, pieces: int, data: bytes, out: list[Action], *, end: bool, same: bool
    ) -> None:
        send_pieces(_RESPONSE, data, end=end, out=out)


def _but(forged: tuple[str, ...], headers: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return the forged headers that none of laar's own replaces."""
    own = {name for name, _ in headers}
    return tuple(name for name in dict.fromkeys(forged) if name not in own)


def _send_all(data: bytes, out: list[Action], *, complete: bool, trailers: bool) -> None:
    send_pieces(_REQUEST, data, end=complete and not trailers, out=out)
    if trailers:
        out.append(AnswerTrailers(_REQUEST))


NATIVE = Dialect(shows_answers=False)
DIALECTS: dict[Shape, Dialect] = {
    Shape.NATIVE: NATIVE,
    Shape.STREAMED: Dialect(shows_answers=True),
    Shape.GATEWAY: _Gateway(shows_answers=True),
}
"""Dialects by the shape that Envoy announces."""

KEPT_HEADERS: dict[Shape, Dialect] = {
    Shape.NATIVE: _KeptHeaders(shows_answers=False),
    Shape.STREAMED: _KeptHeaders(shows_answers=True),
    Shape.GATEWAY: _KeptHeaders(shows_answers=True),  # no Envoy announces this
}
"""The same where Envoy keeps the request's headers."""
