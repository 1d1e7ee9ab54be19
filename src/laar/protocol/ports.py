"""The interfaces that a stream calls: the recorder, and the body hook with what it returns.

Each is implemented in a higher layer, or by a test. No method raises errors on purpose: after an
internal error the request continues without the picker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from laar.core.decision import Completion, Decision
from laar.health import Reply
from laar.protocol.headers import Head
from laar.request import Api


class Recorder:
    """Records what happens to decided requests; this one records nothing. `now` is monotonic."""

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        """Record the endpoints that failed before one answered or Envoy gave up, earliest first.

        An endpoint is listed once for each of its failures.
        """

    def served(self, decision: Decision, address: str, now: float) -> None:
        """Move the reservation to the serving endpoint, if it is another that is known."""

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool) -> None:
        """Record the endpoint's reply for health tracking; `read` if its answer's body is read.

        Called with the status, and again once the body is judged or shows an error.
        """

    def answering(
        self, decision: Decision, now: float, *, ok: bool, full: bool, said: bool
    ) -> None:
        """Record a sign of life in the answer's body; `ok` unless it is an error.

        `full` if the refusal's status shows that the endpoint may be full; `said` if the answer has
        said anything, so the first token has arrived.
        """

    def finished(self, decision: Decision, now: float) -> None:
        """Record that the answer is complete, although its stream may stay open."""

    def stored(self, decision: Decision, stored_id: str) -> None:
        """Record an id under which the endpoint stores its answer, before the answer ends."""

    def ended(self, decision: Decision, end: Completion) -> None:
        """Record the end of a request, and again when its stream closes; only the first counts."""


Restorer = Callable[[bytes], bytes]
"""Reverts changes made for the engine in whole lines of an event stream, or in a whole answer."""


class Rework(Protocol):
    """The hook's result for one body; its methods are told what happens to the request.

    Attributes:
        body: the body to forward: the received object itself if nothing was changed.
        renames: documents were renamed in the body, so the answer may use the new names.
    """

    body: bytes
    renames: bool

    def restorer(self, *, events: bool, encoded: bool) -> Restorer | None:
        """Return the restorer of the client's names in an accepted answer; None if not needed.

        Args:
            events: the answer is an event stream.
            encoded: the answer is compressed, so no names can be restored in it.
        """

    def refused(self) -> None:
        """Record that no endpoint accepted the request."""

    def accepted(self, endpoint: str, now: float) -> None:
        """Record that an endpoint answers with a 2xx status.

        Args:
            endpoint: the endpoint's address; empty if unknown.
            now: seconds, monotonic.
        """

    def ended(self, end: Completion) -> None:
        """Record that an accepted answer has ended; an unread one has no TTFT and no usage."""


class BodyHook(Protocol):
    """Inspects request bodies and may change them.

    A stream calls it once the body is complete and before it builds the request, so that prefixes
    are hashed over the bytes that the endpoint will see. It never refuses a body.
    """

    def apply(
        self,
        body: bytes,
        *,
        api: Api,
        model: str,
        head: Head,
        may_change: bool,
        shows_answer: bool,
        now: float,
        document: dict[str, Any] | None = None,
    ) -> Rework | None:
        """Process and record a body that was read without error.

        `accepted` or `refused` of the result follows; it is None if there is nothing to do.

        Args:
            body: the whole body, as received.
            api: its format.
            model: the client's name for the model.
            head: headers of the request.
            may_change: whether the body may be changed; False in shadow mode.
            shows_answer: the answer's body passes through the picker in any case.
            now: seconds, monotonic.
            document: the body as parsed by `orjson`; None if it was parsed otherwise.
        """
