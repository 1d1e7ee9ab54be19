"""The contract's headers, on requests and answers."""

from __future__ import annotations

from laar.core.cost import MIN_PROBABILITY
from laar.core.decision import Decision
from laar.errors import RequestError
from laar.flow.queue import retry_after_s
from laar.health.kinds import FULL_STATUSES
from laar.protocol import headers as names
from laar.protocol.answers import error_body
from laar.protocol.events import AnswerHeaders, Immediate, ResponseHeaders

MOST_HEADERS = 100
"""Envoy's limit by default. It fails a request that has more headers after a change."""

MAX_HEADERS_TO_ADD_TO = MOST_HEADERS - 10
"""Number of headers above which laar adds none: its headers are not worth a failed request. Of a
gateway that may read nothing else, the request gets the destination, and if it fits the ticket."""

MAX_HEADER_BYTES_TO_ADD_TO = 58 << 10
"""Header size above which laar adds none: Envoy's limit is 60 KiB, and laar adds under 1 KB."""

_ALL, _AUTO, _IDS, _NONE = (names.Answers(name) for name in ("all", "auto", "ids", "none"))


def headers_of_answer(
    decision: Decision,
    answers: names.Answers,
    *,
    shadow: bool,
    overhead_us: int,
    ignored: str,
    held_s: float = 0.0,
) -> list[tuple[str, str]]:
    """Return the headers that clients get with an answer.

    Args:
        decision: the decision, with the serving endpoint.
        answers: which headers to send.
        shadow: the decision was not enforced, so send only what is needed to look it up.
        overhead_us: microseconds that the decision took, without waits.
        held_s: how long the request was held before the decision.
        ignored: name of a header of the client that the settings do not allow; empty if none.
    """
    if answers is _NONE:
        return []
    if answers is _AUTO:
        answers = _IDS if decision.request.tenant else _ALL
    if shadow:
        return [(names.DECISION_ID, decision.id), (names.MODE, "shadow")]
    flight = decision.flight
    headers = [
        (names.MODEL, flight.model),
        (names.REASON, decision.reason),
        (names.DECISION_ID, decision.id),
    ]
    if flight.tried:
        headers.append((names.TRIED, ",".join(flight.tried)))
    if flight.exhausted:
        headers.append((names.EXHAUSTED, "true"))
    if ignored:
        headers.append((names.IGNORED, ignored))
    if answers is _IDS:
        return headers
    headers += [(names.ENDPOINT, flight.address), (names.OVERHEAD_US, str(overhead_us))]
    if held_s:
        headers.append((names.HELD_MS, f"{held_s * 1000.0:.0f}"))
    if decision.view is not None and (terms := decision.view.terms) is not None:
        at = decision.position
        latency_s = terms.latency_s.item(at)
        sure = terms.probability.item(at) if decision.view.knows_outcomes else 1.0
        sure *= 1.0 if terms.answers is None else terms.answers.item(at)
        own_s = terms.ttft_s  # None if the policy does not estimate it
        ttft_s = latency_s - terms.base_s.item(at) if own_s is None else own_s.item(at)
        expected_s = latency_s / max(sure, MIN_PROBABILITY)  # with retries on this model alone
        headers.append((names.COST_MS, f"{expected_s * 1000.0:.1f}"))
        headers.append((names.TTFT_MS, f"{ttft_s * 1000.0:.1f}"))
    return headers


def retry_after(decision: Decision, event: ResponseHeaders, *, acts: bool) -> str | None:
    """Return ``retry-after`` for an engine's refusal that lacks it; None if it is none.

    It is the wait at the best candidate for the requests there. A 503 may have acted.
    """
    status, view = event.status, decision.view
    may = status in FULL_STATUSES or (status == 503 and not acts)
    if not may or event.retry_after_s is not None:
        return None
    return str(retry_after_s(view.terms.queue_s.min() if view and view.terms else 0.0))


def change_headers(
    decided: AnswerHeaders,
    head: names.Head,
    request_id: str,
    *,
    is_own: bool,
    may_name: bool,
    may_add: bool,
    may_read: bool,
    ticket: str,
) -> None:
    """Set the request's headers that carry the decision, and remove the client's control headers.

    Gateways other than laar's own may match routes by headers for the picker, so these stay. If
    laar `may_read` the answer, the endpoint should not compress it. If no header may name the
    destination, only metadata does; the client's own is overwritten.
    """
    changes = decided.set_headers
    if may_name or names.DESTINATION in head.control:
        changes.append((names.DESTINATION, decided.destination))
    if may_add and not head.id:
        changes.append((names.REQUEST_ID, request_id))
    if ticket:
        changes.append((names.TICKET, ticket))
    changes += decided.engine_headers
    kept = {names.DESTINATION, *(name for name, _ in changes)}
    if not is_own:
        kept |= names.CONTROL_HEADERS
    decided.remove_headers = tuple(name for name in head.control if name not in kept)
    if may_read and may_add:
        changes.append(names.UNCOMPRESSED)
    elif may_read:
        decided.remove_headers += names.UNCOMPRESSED[:1]


def refusal(error: RequestError, request_id: str, decision_id: str = "") -> Immediate:
    """Return laar's answer to a refused request."""
    headers = [("content-type", "application/json"), (names.REASON, error.reason)]
    headers += zip(names.ANSWERED_IDS, (request_id, request_id), strict=True)
    if error.retry_after_s is not None:
        headers.append((names.RETRY_AFTER, str(error.retry_after_s)))
    elif error.status >= 500:
        headers.append(names.NOT_AGAIN)
    if decision_id:
        headers.append((names.DECISION_ID, decision_id))
    return Immediate(error.status, headers, error_body(error, request_id))
