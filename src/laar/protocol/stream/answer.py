"""Track the endpoint's answer as it passes: status, first byte, errors, usage and end."""

from __future__ import annotations

from dataclasses import dataclass

from laar.core.decision import Completion, Decision
from laar.errors import RequestError
from laar.health import GOOD, Kind, Reply
from laar.protocol import agreed
from laar.protocol.answers import MAX_ERROR_BYTES, NO_USAGE, AnswerReader
from laar.protocol.events import ResponseHeaders
from laar.protocol.ports import Recorder, Restorer
from laar.protocol.usefulness import flaw_of_type
from laar.request import Api

EXPLAINED = (400, 413, 422, 503)
"""Statuses of refusals whose bodies show why: a request that is too long, or an engine that is full
or broken."""
_NOT_ARRIVED = ("connection_failure", "no_healthy_upstream")
"""Parts of Envoy's details if the last attempt certainly did not arrive."""
_PROGRESS_S = 0.5
"""Minimum seconds between reports of a stream's progress."""


@dataclass(slots=True)
class Answer:
    """The state of one answer.

    Args:
        status: status of the answer; None until known, or if no endpoint answered.
        accepted: the status shows that the endpoint accepted the request.
        restorers: restore the client's model name and document numbers.
        names: the model's names, as used by the client and the decision.
        complete: the answer has ended, or its last event was read.
        let_go: the stream ends before the answer does, so the answer's end will not be seen.
        is_hidden: the gateway ends the stream once it has the decision, and tells nothing else.
    """

    status: int | None = None
    accepted: bool = False
    restorers: tuple[Restorer, ...] = ()
    names: tuple[str, ...] = ()
    complete: bool = False
    let_go: bool = False
    is_hidden: bool = False
    _unanswered: bool = False
    _is_read: bool = False
    _error: bool = False
    _said_at: float | None = None
    """When the first token arrived."""
    _progress_at: float = float("-inf")
    """When a sign of life was last reported."""
    _refusal: Reply | None = None
    _reader: AnswerReader | None = None

    def replied(
        self, decision: Decision, event: ResponseHeaders, *, read: bool, stored: bool
    ) -> Reply | None:
        """Return the endpoint's reply; None without a status, or if its body must show why.

        `read` if the answer's body will be read; `stored` if the engine stores it, to read its id.
        """
        if event.status is None or self._unanswered:
            return None
        request = decision.request
        reply = Reply(status=event.status, retry_after_s=event.retry_after_s)
        if event.status in EXPLAINED and read and reply.retry_after_s is None:
            self._refusal = reply
        # Clients read a stream whatever its type; only a page for people can't be one.
        is_json = "json" in event.media_type
        claims = event.media_type if request.stream and is_json else ""
        if request.api is Api.OPAQUE or not self.accepted:
            pass
        elif event.end:
            reply = Reply(status=event.status, found=Kind.EMPTY)
        elif flaw_of_type(event.media_type, request.api, stream=request.stream) and not claims:
            reply = Reply(status=event.status, found=Kind.TYPE, detail=event.media_type)
        self._is_read = read
        self._error = reply.found is not None and reply.found is not GOOD
        if read:
            is_known = reply.found is not None or not self.accepted
            is_open = not event.streamed and (claims or not event.media_type)
            self._reader = AnswerReader(
                events=None if is_open else event.streamed,
                claims=claims,
                stored=stored,
                status=event.status,
                api=Api.OPAQUE if is_known else request.api,
                compressed=event.encoded,
                asked=request.shadow or request.prefill_in_place,  # with the client's own headers
            )
        return None if self._refusal is not None else reply

    def read(
        self, decision: Decision, data: bytes, now: float, recorder: Recorder, *, end: bool
    ) -> None:
        """Read a chunk, or just the end, looking for a refusal text, an error, usage and an id.

        Progress is recorded too, but not for every chunk. A chunk without an event, for example a
        comment, is not progress.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            refusal.text = data[:MAX_ERROR_BYTES]
            recorder.replied(decision, refusal, now, read=True)
        reader = self._reader = self._reader or AnswerReader(events=None)
        known = reader.stored_id
        replies = (reader.feed(data) if data else None, reader.end() if end else None)
        for reply in replies:
            if reply is not None and self.accepted and not self._error:
                reply.model = "" if reply.model in self.names else reply.model
                self._error = reply.found is not GOOD
                recorder.replied(decision, reply, now, read=True)
        if reader.stored_id != known:
            recorder.stored(decision, reader.stored_id)
        # A finish reason without a word before it was the first token.
        says = self._said_at is None and (reader.said or reader.finished or self._error)
        if says:
            self._said_at = now
        if data and (says or (reader.progressed and now - self._progress_at >= _PROGRESS_S)):
            self._progress_at = now
            full, ok = self.status == 429 or (self.status or 0) >= 500, self.accepted
            said = self._said_at is not None
            recorder.answering(decision, now, ok=ok and not self._error, full=full, said=said)
        if reader.finished or reader.has_ended:
            recorder.finished(decision, now)

    def put_by(self, data: bytes, now: float) -> bool:
        """Keep a chunk to read later if it can be passed on immediately; return whether it can."""
        reader, is_due = self._reader, now - self._progress_at >= _PROGRESS_S
        if reader is None or is_due or self.complete or self.restorers:
            return False
        return reader.put_by(data)

    def fail(self) -> None:
        """Record that no endpoint answered: the status is Envoy's."""
        self.status, self.accepted, self._unanswered = None, False, True

    def completion(self, decision: Decision, now: float, recorder: Recorder) -> Completion:
        """Return what is known about how the request ended, after reading what `put_by` kept.

        Whether an unread answer was cut off is unknown, so it is assumed complete. An answer that
        was being read but did not end was cut off.
        """
        reader, said_at, begun = self._reader, self._said_at, self._progress_at >= 0.0
        if reader is not None and not self.complete:
            self._progress_at = now  # what waited arrived earlier
            self.read(decision, reader.rest, now, recorder, end=False)
            self.complete = reader.has_ended
        cause = "complete"
        if self._unanswered:
            cause = "error"
        elif self.status is None or (self.let_go and not self.complete):
            cause = "hidden" if self.is_hidden else "disconnect"
        elif (self._is_read or begun) and not self.complete:
            cause = "reset"
        usage = reader.usage if reader is not None and self.complete else NO_USAGE
        return Completion(
            status=self.status,
            cause=cause,
            latency_s=now - decision.now,
            ttft_s=None if said_at is None else said_at - decision.now,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            shown=reader.shown if reader is not None and self.complete and self.accepted else None,
            error=self._error,
        )


def failed_attempts(
    decision: Decision, event: ResponseHeaders, *, hurried: bool
) -> tuple[str, ...]:
    """Return the endpoints that failed, assuming that Envoy tried the list in order.

    If Envoy hedged, an endpoint may have answered after later ones were tried; these did not fail.
    """
    ranked = (decision.address, *decision.fallbacks)
    asked = [ranked[i % len(ranked)] for i in range(event.attempts)]
    if event.details == agreed.FROM_ENDPOINT:
        asked = asked[: asked.index(event.served) if hurried and event.served in asked else -1]
    return tuple(asked)


def no_answer_error(event: ResponseHeaders, model: str, *, repeats: bool) -> RequestError:
    """Return the error that replaces Envoy's if no endpoint for the model answered.

    Unless Envoy `repeats` a request that may have arrived, clients are not told to do so either.
    """
    if "protocol_error" in event.details:
        error = f"an endpoint for the model `{model[:200]}` answered with what is not HTTP"
        return RequestError(502, "bad-answer", error)
    silent = event.status == 504
    what = "answered in time" if silent else "could be reached"
    error = f"no endpoint for the model `{model[:200]}` {what}"
    surely_not = any(reason in event.details for reason in _NOT_ARRIVED)
    if not (repeats or surely_not):
        error = f"{error}, but one may have received the request, or refused it unread"
    return RequestError(
        504 if silent else 503,
        "timed-out" if silent else "no-answer",
        error,
        retry_after_s=1 if repeats or surely_not else None,
    )
