"""Clients: an open loop on a schedule, closed-loop sessions, and users who retry.

The open loop sends at the scheduled times, whatever the fleet does, up to a cap on requests in
flight. At the cap, requests wait and the schedule is not read any further, so a long schedule
takes no memory. Latency is measured both from the scheduled time and from dispatch: under
saturation, the cap turns the loop into a closed one, which only the latency from the scheduled
time shows.

Sessions wait for an answer before they go on: `converse` sends a turn when it is due, or later,
once the previous one is answered; `hold_sessions` also pauses after that answer, and keeps a fixed
number of sessions open.

The retry loop is LAAR's: a number of users each ask, check the answer, and ask again until it is
correct. `laar.client.until` is the same loop over HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from laar.errors import RequestError
from laar.request import Request
from laar_lab.sim.fleet.exchange import Exchange
from laar_lab.sim.fleet.fleet import VirtualFleet
from laar_lab.sim.fleet.prompts import Arrival, Prompt, request_of

MAX_IN_FLIGHT = 64
"""Maximum number of requests in flight in GORGO's client."""

MAX_ATTEMPTS = 10
"""Maximum number of attempts per question; R in the LAAR paper."""

Send = Callable[[Request, Arrival, Callable[[Exchange], None]], object]
"""Sends a session's request in place of `VirtualFleet.send`; calls the callback when it ends."""


def asking_again(fleet: VirtualFleet, on_refused: Callable[[], None]) -> Send:
    """Return a function that sends through flow control and retries refusals after their delay."""

    def send(request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        def refused(error: RequestError) -> None:
            on_refused()
            again = replace(request, id=f"{request.id}+")
            due_s = fleet.clock.now + (error.retry_after_s or 1)
            fleet.clock.at(due_s, send, again, arrival, ended)

        fleet.enqueue(request, arrival.prompt, ended, refused)

    return send


def replay_open(
    fleet: VirtualFleet,
    arrivals: Iterable[Arrival],
    on_end: Callable[[Arrival, Exchange], None],
    *,
    max_in_flight: int = MAX_IN_FLIGHT,
    on_refused: Callable[[Arrival], None] | None = None,
) -> None:
    """Run a schedule to completion.

    Args:
        fleet: a fresh fleet.
        arrivals: requests in chronological order, read when due.
        on_end: called with each request when it ends; failed ones have a status other than 200.
        max_in_flight: the client's limit.
        on_refused: called with each request that flow control refuses; None to use no flow control.
    """
    _OpenLoop(fleet, iter(arrivals), on_end, max_in_flight, on_refused).start()
    fleet.clock.run()


class _OpenLoop:
    def __init__(
        self,
        fleet: VirtualFleet,
        arrivals: Iterator[Arrival],
        on_end: Callable[[Arrival, Exchange], None],
        cap: int,
        on_refused: Callable[[Arrival], None] | None,
    ) -> None:
        self._fleet, self._arrivals, self._on_end, self._cap = fleet, arrivals, on_end, cap
        self._on_refused = on_refused
        self._open = self._sent = 0
        self._held: Arrival | None = None

    def start(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._fleet.clock.at(arrival.at_s, self._due, arrival)

    def _due(self, arrival: Arrival) -> None:
        if self._open >= self._cap:
            self._held = arrival
        else:
            self._send(arrival)

    def _send(self, arrival: Arrival) -> None:
        self._open += 1
        self._sent += 1
        request = request_of(self._sent, arrival)

        def ended(exchange: Exchange) -> None:
            self._on_end(arrival, exchange)
            over()

        def over() -> None:
            self._open -= 1
            held, self._held = self._held, None
            if held is not None:
                self._send(held)

        on_refused = self._on_refused
        if on_refused is None:
            self._fleet.send(request, arrival.prompt, ended)
        else:

            def refused(_error: RequestError) -> None:
                on_refused(arrival)
                over()

            self._fleet.enqueue(request, arrival.prompt, ended, refused)
        self.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A session's turns, one after another.

    Args:
        session: session id.
        turns: the prompts, each including the history.
        due_s: when each turn is due; it is sent then, or later, once the previous one is answered.
    """

    session: str
    turns: tuple[Prompt, ...]
    due_s: tuple[float, ...]


def converse(
    fleet: VirtualFleet,
    conversations: Iterable[Conversation],
    on_end: Callable[[Arrival, Exchange], None],
    send: Send | None = None,
) -> None:
    """Run all conversations concurrently to completion, sending with `send` if given."""
    numbers = count(1)

    def turn(conversation: Conversation, index: int) -> None:
        arrival = Arrival(
            at_s=fleet.clock.now,
            prompt=conversation.turns[index],
            session=conversation.session,
        )

        def ended(exchange: Exchange) -> None:
            on_end(arrival, exchange)
            begin(conversation, index + 1)

        _sent(fleet, send, request_of(next(numbers), arrival), arrival, ended)

    def begin(conversation: Conversation, index: int) -> None:
        if index < len(conversation.turns):  # a past time means now
            fleet.clock.at(conversation.due_s[index], turn, conversation, index)

    for conversation in conversations:
        begin(conversation, 0)
    fleet.clock.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request of a session, sent when both pauses are over.

    Args:
        prompt: the prompt.
        after_answer_s: pause after the previous answer, or for the first turn, after the start.
        after_request_s: pause after the previous request was sent.
        kind: class of the request, for tables by class.
    """

    prompt: Prompt
    after_answer_s: float = 0.0
    after_request_s: float = 0.0
    kind: str = ""


def hold_sessions(
    fleet: VirtualFleet,
    sessions: Iterable[tuple[str, Iterable[Turn]]],
    on_end: Callable[[Arrival, Exchange], None],
    *,
    at_once: int,
    ramp_s: float = 0.0,
    until_s: float = math.inf,
    send: Send | None = None,
) -> None:
    """Run sessions as a closed loop to completion, `at_once` at a time.

    Args:
        fleet: a fresh fleet.
        sessions: name and turns of each session, in the order in which they begin. After the first
            `at_once`, each begins when another has ended.
        on_end: called with each request when it ends; failed ones have a status other than 200.
        at_once: number of concurrent sessions.
        ramp_s: time over which the first `at_once` sessions begin, evenly spaced.
        until_s: time after which no request is sent.
        send: sends each request; the fleet's own method by default.
    """
    waiting = iter(sessions)
    numbers = count(1)
    clock = fleet.clock

    def begin() -> None:
        for name, turns in waiting:  # skip sessions without turns
            if goes_on(name, iter(turns), clock.now, clock.now):
                return

    def goes_on(name: str, turns: Iterator[Turn], answered_s: float, sent_s: float) -> bool:
        """Schedule a session's next request; return False if there is none."""
        turn = next(turns, None)
        if turn is None:
            return False
        due_s = max(answered_s + turn.after_answer_s, sent_s + turn.after_request_s)
        if due_s <= until_s:
            clock.at(due_s, go, name, turns, turn)
        return True

    def go(name: str, turns: Iterator[Turn], turn: Turn) -> None:
        arrival = Arrival(at_s=clock.now, prompt=turn.prompt, session=name, kind=turn.kind)

        def ended(exchange: Exchange) -> None:
            on_end(arrival, exchange)
            if not goes_on(name, turns, clock.now, arrival.at_s):
                begin()

        _sent(fleet, send, request_of(next(numbers), arrival), arrival, ended)

    for place in range(at_once):
        clock.at(ramp_s * place / at_once, begin)
    clock.run()


def _sent(
    fleet: VirtualFleet,
    send: Send | None,
    request: Request,
    arrival: Arrival,
    ended: Callable[[Exchange], None],
) -> None:
    if send is None:
        fleet.send(request, arrival.prompt, ended)
    else:
        send(request, arrival, ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of the retry loop.

    Args:
        request: the request of the first attempt.
        prompt: the prompt of every attempt.
        is_correct: returns whether a model's answer is correct.
        normals: jitter draws, one per attempt.
    """

    request: Request
    prompt: Prompt
    is_correct: Callable[[str], bool]
    normals: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class Answered:
    """A user's outcome: each answer's model and latency, and whether the last was correct.

    Args:
        question: the question.
        models: the model of each answer, in the order of the answers.
        latencies_s: the seconds of each.
        correct: whether the last answer was correct.
        ttca_s: time to correct answer; a lower bound if no answer was correct.
        ended_s: when it ended.
        engine_s: seconds that its requests were at endpoints, those cancelled included.
    """

    question: Question
    models: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    correct: bool = False
    ttca_s: float = 0.0
    ended_s: float = 0.0
    engine_s: float = 0.0


def ask_until_correct(
    fleet: VirtualFleet,
    questions: Iterable[Question],
    *,
    concurrency: int,
    max_attempts: int = MAX_ATTEMPTS,
    at_once: int = 1,
    every_s: float | None = None,
    stop_when_exhausted: bool = True,
    on_attempt: Callable[[Exchange, bool], None] = lambda _exchange, _correct: None,
) -> list[Answered]:
    """Run the retry loop to completion; return the outcome of each question, in order.

    Args:
        fleet: a fresh fleet.
        questions: asked in order, `concurrency` at a time.
        concurrency: number of users.
        max_attempts: number of attempts after which a user gives up.
        at_once: number of models that a user asks at the same time, if the picker allows it.
        every_s: seconds between questions; None to ask the next when one is answered.
        stop_when_exhausted: give up once the picker reports that all models were tried.
        on_attempt: called after each attempt with the exchange and whether it was correct.
    """
    waiting = iter(questions)
    answered: list[Answered] = []
    clock = fleet.clock

    def begin() -> None:
        question = next(waiting, None)
        if question is not None:
            record = Answered(question=question)
            answered.append(record)
            asking = _Asking(
                fleet, record, max_attempts, at_once, stop_when_exhausted, on_attempt, over
            )
            asking.began_s = clock.now
            asking.ask()
            if every_s is not None:
                clock.at(clock.now + every_s, begin)

    def over() -> None:
        if every_s is None:
            begin()

    for _ in range(1 if every_s is not None else concurrency):
        begin()
    clock.run()
    return answered


@dataclass(slots=True)
class _Asking:
    """A question being asked."""

    fleet: VirtualFleet
    record: Answered
    max_attempts: int
    at_once: int
    stop_when_exhausted: bool
    on_attempt: Callable[[Exchange, bool], None]
    over: Callable[[], None]
    sent: int = 0
    began_s: float = 0.0
    tried: list[str] = field(default_factory=list)
    in_flight: list[Exchange] = field(default_factory=list)

    def ask(self) -> None:
        """Send the next attempt, and a companion if none is in flight."""
        while self.sent < self.max_attempts and len(self.in_flight) < self.at_once:
            question, number = self.record.question, self.sent
            first = self.in_flight[0].request.id if self.in_flight else ""
            request = replace(
                question.request,
                id=f"{question.request.id}/{number}",
                tried=",".join(self.tried),
                companion_of=first,
                retries=self.max_attempts > 1,
            )
            draw = question.normals[number % len(question.normals)]
            try:
                sent = self.fleet.send(request, question.prompt, self._judge, normal=draw)
            except RequestError:
                if first:
                    return
                raise
            self.sent += 1
            self.in_flight.append(sent)

    def _judge(self, exchange: Exchange) -> None:
        record, decision, now = self.record, exchange.decision, self.fleet.clock.now
        self.in_flight.remove(exchange)
        record.models.append(decision.model)
        record.latencies_s.append(exchange.latency_s)
        record.engine_s += exchange.latency_s
        record.correct = exchange.status == 200 and record.question.is_correct(decision.model)
        self.on_attempt(exchange, record.correct)
        others = [model for model in self.tried if model not in decision.tried]
        self.tried = [*decision.tried, *others]
        gone = self.stop_when_exhausted and decision.exhausted
        if record.correct:
            for other in self.in_flight:
                record.engine_s += now - other.sent_s
                self.fleet.cancel(other)
        elif not gone:
            self.ask()
        if record.correct or not self.in_flight:
            record.ttca_s, record.ended_s = now - self.began_s, now
            self.over()
