"""Silence: detected by regular checks, relative to siblings.

A long prompt, a long answer, or a fleet that is slow as a whole must not look like a hanging
engine. So an endpoint is considered silent only if it sends nothing, or no more of an answer, for
far longer than is typical for its model while siblings progress with later requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from laar.health.breaker import OVERDUE_S
from laar.health.endpoint import Attempt, Member, Stage
from laar.health.kinds import Kind
from laar.health.questions import Questions
from laar.health.records import Records

_OVERTAKEN = 3
"""Later requests that must overtake an attempt before its silence is the endpoint's fault."""
_SLACK = 0.4
"""Maximum duration of overtaking requests, as a share of the silence: when a fleet slows down as
a whole, some request is always overtaken."""
_WORKED_S, _STREAMED_S, _BUSY_S = 2.5, 0.75, 60.0
"""Maximum age of a page that shows work (scraped each second) and of a chunk of another answer
(reported twice a second), and the longest silence that they excuse: in a full KV cache, even a
prompt believed cached waits for memory and for 100,000 tokens."""
_DOUBTED_S = 0.25 * OVERDUE_S
"""Seconds of silence after which an endpoint is probed: requests sent to it until it is excluded
would be lost as well."""

_SILENT_TO_S, _PROBED_S = 60.0, 5.0
"""Seconds for which a silence is remembered of a tenant, and between a probe and the trial after
it."""


def find_hang(
    records: Records,
    questions: Questions,
    endpoint: Member,
    attempts: Iterable[Attempt],
    now: float,
) -> int:
    """Exclude an endpoint that has become silent; if that is uncertain, schedule a probe.

    Return how many of its attempts were examined, the oldest first, until one that is recent.
    """
    breaker, looked = endpoint.breaker, 0
    # While requests end, only attempts whose progress can be seen need a check.
    has_ended = now - endpoint.progress_at[Stage.OVER] <= _DOUBTED_S
    for attempt in attempts:
        looked += 1
        if now - attempt.at <= _DOUBTED_S:
            break  # the later attempts are more recent
        if attempt.overdue or attempt.judged or (has_ended and not attempt.is_followed):
            continue
        if attempt not in endpoint.attempts:  # it has ended since the examination began
            continue
        if not (silent_s := silence_s(attempt, now, _DOUBTED_S)):
            continue
        records.mark(endpoint)
        if attempt.doubted_at <= now - silent_s:
            attempt.doubted_at = now
        # A client that stops reading hides the end of an unread answer: let a probe decide.
        unseen = attempt.is_unread and not breaker.is_open
        alive = unseen and endpoint.admitted_at > now - silent_s
        several = len(_silent_to(records, attempt, now)) > 1
        waits = (unseen or several) and questions.may_ask
        if not alive and (now - attempt.doubted_at if waits else silent_s) <= OVERDUE_S:
            questions.suspect(endpoint, Kind.HANG, now, excused=several)
            continue
        attempt.overdue = True
        alive = alive or is_clients(records, attempt, silent_s, now)
        if alive and attempt is breaker.trial:
            breaker.end_trial(attempt, now)
        if alive or (breaker.is_open and attempt is not breaker.trial):
            continue
        endpoint.failures[Kind.HANG] += 1
        attempt.blamed = True
        breaker.record_failure(attempt, Kind.HANG, 1.0, now)
        # An engine that answers later requests has not hung: this answer pauses for a tool call.
        if not (breaker.is_out or endpoint.overtook(now - silent_s, Stage.OVER, silent_s)):
            breaker.open(Kind.HANG, now)
    return looked


def is_clients(records: Records, attempt: Attempt, silent_s: float, now: float) -> bool:
    """Record a silence; return whether its request is at fault rather than its endpoint.

    It is if other endpoints were silent to the same tenant too, and this one has answered a probe
    since then. A tenant may send what no engine answers, and must not take out one after another.
    """
    slots = _silent_to(records, attempt, now)
    slots[attempt.endpoint.slot] = now
    records.silences[attempt.tenant] = slots
    slack_s = _PROBED_S if attempt is attempt.endpoint.breaker.trial else 0.0
    return len(slots) > 1 and attempt.endpoint.admitted_at > now - silent_s - slack_s


def _silent_to(records: Records, attempt: Attempt, now: float) -> dict[int, float]:
    """Return when endpoints were lately silent to the tenant of an attempt, by slot."""
    known = records.silences.get(attempt.tenant, {})
    return {slot: at for slot, at in known.items() if now - at <= _SILENT_TO_S}


def silence_s(attempt: Attempt, now: float, beyond_s: float = OVERDUE_S) -> float:
    """Return for how long an attempt has been silent while siblings made progress, in seconds.

    Return 0 for a silence no longer than `beyond_s` or than is typical.
    """
    if not attempt.timed:
        return 0.0
    endpoint, at_once = attempt.endpoint, not attempt.stream  # headers come with the body's end
    waiting_for = Stage(attempt.stage + 1)
    if at_once or attempt.is_unread:
        waiting_for = Stage.OVER
    # Any request that reaches the stage this one is waiting for, or `ANSWERING`, ends the silence.
    since = max(attempt.at, *endpoint.progress_at[min(waiting_for, Stage.ANSWERING) :])
    if attempt.is_followed:
        since = attempt.progress_at  # it has stalled, even if others progress
    silent_s = now - since
    if silent_s <= beyond_s:
        return 0.0
    works = silent_s > OVERDUE_S and now - endpoint.worked_at <= _WORKED_S
    streams = not attempt.is_followed and now - endpoint.streamed_at <= _STREAMED_S
    if silent_s <= _BUSY_S and (works or streams):
        return 0.0
    times = endpoint.family.times[attempt.stream]
    if silent_s <= times.limit_s(Stage.OVER if at_once else waiting_for, attempt.predicted_s):
        return 0.0
    overtaken = 0
    for other in reversed(endpoint.family.progressed):
        if max(other.progress_at) <= since:
            break  # the remaining ones haven't either, and checking them all takes too long
        if other is not endpoint:
            overtaken += other.overtook(since, waiting_for, _SLACK * silent_s)
        if overtaken >= _OVERTAKEN:
            return silent_s
    return 0.0
