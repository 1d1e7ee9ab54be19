"""Hedging: two models at once where that pays, the first right answer taken.

The picker's answer begins with the attempt's expected time, how likely it is right, and the same of
the best other model (`x-laar-hedge`, if the request asks for it). `Hedge.pays` weighs them:

    saved  = (1 - p) * min(s, next_s)                the second attempt need not wait for the first
    wasted = p * min(s, next_s) + others_s           its seconds in vain, and those of others

It pays where `saved >= price * wasted`, or where the second would miss the deadline after the first
and meet it beside it. So with an idle endpoint it pays where P(correct) is below 0.8 at a price of
1/4, and below a half at a price of 1. The budget bounds the seconds of all second requests.
`next_p` matters only as a floor: a wrong second answer saves its time as well, since the third
attempt begins sooner.

`hedged_attempts` is the loop of `laar.client.loop` with that choice, without input or output. It is
sent events: the head of an answer, or an answer. The caller cancels requests in flight when it
ends, or when it yields another `Send`; the picker then frees the endpoint.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

from laar.client.loop import (
    RETRYABLE,
    Attempt,
    Check,
    Message,
    Outcome,
    Reply,
    Send,
    Wait,
    beginning,
    is_last,
    judged,
    outcome_of,
    pause_s,
)
from laar.errors import SettingError
from laar.protocol import headers as names

_MAX_S = 1e6


class Advice(NamedTuple):
    """The picker's estimates of an attempt and of the best one beside it; see the module's text."""

    p: float
    s: float
    next_p: float
    next_s: float
    others_s: float


def read_advice(header: str | None) -> Advice | None:
    """Reads an answer's ``x-laar-hedge``; None for no header, or one that makes no sense."""
    if not header or len(header) > names.MAX_VALUE_CHARS:
        return None
    parts = [part.partition("=") for part in header.split(";")]
    found = {name.strip(): value.strip() for name, _, value in parts}
    try:
        advice = Advice(*(float(found[name]) for name in names.HEDGE_FIELDS))
    except (KeyError, ValueError):
        return None
    chances = 0 <= advice.p <= 1 and 0 <= advice.next_p <= 1
    seconds = all(0 <= each <= _MAX_S for each in (advice.s, advice.next_s, advice.others_s))
    return advice if chances and seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """Rule for when `until_correct` asks two models at once.

    Args:
        budget_s: engine seconds that second requests may run, for one question.
        deadline_s: seconds from the first request within which a correct answer is wanted; None for
            no deadline.
        price: seconds of waiting that a second of an engine in vain has to save; 0 hedges
            wherever the budget lasts.
        min_next_p: the second model is asked only if it is right with this probability at least.
    """

    budget_s: float = 10.0
    deadline_s: float | None = None
    price: float = 0.25
    min_next_p: float = 0.05

    def __post_init__(self) -> None:
        limits = (self.budget_s, self.price, self.min_next_p, self.deadline_s or 0.0)
        if not all(isfinite(each) and each >= 0 for each in limits):
            raise SettingError("a hedge's budget, deadline, price and probability are 0 or more")

    def pays(self, advice: Advice, *, spent_s: float = 0.0, elapsed_s: float = 0.0) -> bool:
        """Whether to ask the second model now.

        Args:
            advice: the picker's advice on the attempt that has just begun.
            spent_s: engine seconds of earlier second requests.
            elapsed_s: seconds since the first request.
        """
        both_s = min(advice.s, advice.next_s)
        if advice.next_p < self.min_next_p or spent_s + both_s > self.budget_s:
            return False
        left_s = inf if self.deadline_s is None else self.deadline_s - elapsed_s
        if advice.next_s <= left_s < advice.s + advice.next_s:
            return True
        wasted_s = advice.p * both_s + advice.others_s
        return left_s >= advice.next_s and (1 - advice.p) * both_s >= self.price * wasted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """Post this as well, beside the one in flight."""

    send: Send


@dataclass(frozen=True, slots=True)
class Next:
    """Wait for the next event of the requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of the first request's answer came.

    Args:
        headers: names in lower case.
        elapsed_s: seconds since the request was sent.
    """

    headers: Mapping[str, str]
    elapsed_s: float


class Answered(NamedTuple):
    """A request of a pair was answered.

    Args:
        reply: the reply to it.
        hedged: it is the second one.
        ran_s: seconds that the second one has run by now, 0 where there is none.
        at_s: seconds since the first of the pair was sent.
    """

    reply: Reply
    hedged: bool
    ran_s: float
    at_s: float


Event = Head | Answered
HedgedSteps = Generator[Send | Also | Next | Wait, Event | None, Outcome]


def hedged_attempts(
    messages: Sequence[Message],
    check: Check,
    hedge: Hedge,
    *,
    model: str = "auto",
    max_attempts: int = 10,
    stop_when_exhausted: bool = True,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
) -> HedgedSteps:
    """The loop as a generator; see the module's text for how to drive it."""
    body, sent = beginning(messages, model, max_attempts, headers, params)
    sent[names.HEDGE] = "ask"
    made: list[Attempt] = []
    waited_s = spent_s = took_s = 0.0
    exhausted = False
    while len(made) < max_attempts and not exhausted:
        if waited_s:
            took_s += waited_s
            yield Wait(duration_s=waited_s)
        event = yield Send(body=body, headers=dict(sent))
        replies: list[Reply] = []
        under_way, ran_s, at_s = 1, 0.0, 0.0
        while under_way:
            if isinstance(event, Head):
                second = _second(hedge, event, sent, spent_s, took_s)
                if second is not None and len(made) + 1 < max_attempts:
                    under_way += 1
                    event = yield Also(send=Send(body=body, headers=second))
                else:
                    event = yield Next()
                continue
            assert event is not None, "the driver answers with an event"
            reply, hedged, ran_s, at_s = event
            under_way -= 1
            replies.insert(0 if hedged else len(replies), reply)
            made.append(judged(reply, check, waited_s, hedged=hedged))
            waited_s = 0.0
            if made[-1].correct:
                return outcome_of(made, exhausted=False, ttca_s=took_s + at_s)
            if under_way:
                event = yield Next()
        spent_s += ran_s
        took_s += at_s
        last = min(replies, key=_use)
        if last.status not in RETRYABLE and last.status != 200:
            break
        for name in (names.TRIED, names.SINCE):
            if value := last.headers.get(name):
                sent[name] = value
        exhausted = stop_when_exhausted and is_last(last)
        waited_s = pause_s(last, len(made))
    return outcome_of(made, exhausted=exhausted, ttca_s=took_s)


def _use(reply: Reply) -> int:
    """The rank of a reply for the next attempt: an answer, then a refusal, then a fault."""
    return 0 if reply.status == 200 else 1 if reply.status in RETRYABLE else 2


def _second(
    hedge: Hedge, head: Head, sent: Mapping[str, str], spent_s: float, took_s: float
) -> dict[str, str] | None:
    """The headers of a second request beside the first; None where it does not pay."""
    advice = read_advice(head.headers.get(names.HEDGE))
    tried, decision = head.headers.get(names.TRIED), head.headers.get(names.DECISION_ID)
    if advice is None or not tried or not decision:
        return None
    if not hedge.pays(advice, spent_s=spent_s, elapsed_s=took_s + head.elapsed_s):
        return None
    second = {name: value for name, value in sent.items() if name != names.HEDGE}
    since = head.headers.get(names.SINCE)
    return {**second, names.TRIED: tried, names.HEDGE_OF: decision} | (
        {names.SINCE: since} if since else {}
    )
