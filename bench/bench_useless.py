"""Measure how much traffic one useless endpoint of five equal ones gets, in any form of answer.

Four endpoints answer in 60 ms; the fifth answers everything in one useless form, at once unless the
form has a pace of its own, and the picker's probes too. Forms are drawn from a grammar of statuses,
content types, encodings, finish reasons, texts and shapes of streams. The production picker and its
stream machine run in virtual time, with default settings. By chance the fifth endpoint would get
20 % of the requests; a form misses its target above that, or above 1 % if its answers say "error".

    python -m bench useless
    python -m bench useless --forms 20 --shapes gateway
    python -m bench useless --named "one token,fluent,refuses tools"
"""

from __future__ import annotations

import gzip
import heapq
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle, repeat
from typing import Any, cast

import orjson
from aiohttp import ClientResponse

from bench.figures import MISSED
from bench.options import count as whole
from bench.options import names_of, parser_for, positive
from laar.core.decision import Decision
from laar.datalayer.asking import read_answer
from laar.fleet.membership import EndpointSpec
from laar.protocol.events import (
    AnswerHeaders,
    Ask,
    Closed,
    Decided,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    Shape,
)
from laar.protocol.headers import FAIRNESS, media_type
from laar.protocol.stream import Stream
from laar.server.extproc.processor import ExternalProcessor
from laar.server.picker import Picker
from laar.settings import Settings

ENDPOINTS = 5
RATE_PER_S = 60.0
ANSWER_S = 0.06
CHANCE = 1.0 / ENDPOINTS
ERRORS_AT_MOST, LATE_AT_MOST = 0.01, 0.05
LEARNED_S = 10.0
PROBE_EVERY_S = 0.25
SHAPES = {"native": Shape.NATIVE, "gateway": Shape.GATEWAY}

JSON, SSE = "application/json", "text/event-stream"
_TEXT = (
    "the a model answers with many words about rivers trees bread light stone paper music north "
    "winter engine garden number letter seven green quiet open early under between"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A client's request; `wants` is the kind of answer that a healthy endpoint gives."""

    text: str
    wants: str = "text"
    stream: bool = False
    max_tokens: int | None = 200
    tools: bool = False
    response_format: bool = False
    system: str = ""
    path: str = "/v1/chat/completions"
    session: str = ""
    tenant: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    probe: bool = False

    @property
    def body(self) -> bytes:
        """The JSON body."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.text}]
        document: dict[str, Any] = {"model": "m", "stream": self.stream, "messages": messages}
        if self.path.endswith("embeddings"):
            document = {"model": "m", "input": self.text}
        if self.max_tokens is not None:
            document["max_tokens"] = self.max_tokens
        if self.tools:
            document["tools"] = [{"type": "function", "function": {"name": "look_up"}}]
        if self.response_format:
            document["response_format"] = {"type": "json_object"}
        return orjson.dumps({**document, **dict(self.options)})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An endpoint's answer; a cut one ends without its last bytes."""

    status: int = 200
    kind: str = JSON
    encoding: str = ""
    parts: tuple[bytes, ...] = ()
    seconds: float = 0.001


Behavior = Callable[[Question, random.Random], Answer]
"""How an endpoint answers."""


# -- useful answers ------------------------------------------------------------------------------


def sentence(rng: random.Random, least: int = 6, most: int = 60) -> str:
    """Return random words."""
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def said(
    question: Question,
    text: str,
    *,
    finish: str | None = "stop",
    tokens: int | None = None,
    seconds: float = 0.001,
    pieces: int = 0,
    message: dict[str, Any] | None = None,
) -> Answer:
    """Return a well-formed answer with this text, streamed in pieces if the question wants that."""
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": len(text.split()) if tokens is None else tokens,
    }
    if not question.stream:
        whole = message or {"role": "assistant", "content": text}
        choice = {"index": 0, "message": whole, "finish_reason": finish}
        body = orjson.dumps({"model": "m", "choices": [choice], "usage": usage})
        return Answer(parts=(body,), seconds=seconds)
    size = max(1, len(text) // (pieces or 12))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += (
        [message]
        if message
        else [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    )
    events: list[dict[str, Any]] = [
        {"model": "m", "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": finish}
    events.append({"model": "m", "choices": [last], "usage": usage})
    lines = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]
    return Answer(kind=SSE, parts=(*lines, b"data: [DONE]\n\n"), seconds=seconds)


def useful(question: Question, rng: random.Random) -> Answer:
    """Answer after 60 ms, as any healthy endpoint does."""
    seconds = ANSWER_S * rng.uniform(0.8, 1.2)
    made, said_ = random.Random(question.text), partial(said, question, seconds=seconds)
    if question.path.endswith("embeddings"):
        vector = [made.gauss(0.0, 1.0) for _ in range(16)]
        body = orjson.dumps({"model": "m", "data": [{"index": 0, "embedding": vector}]})
        return Answer(parts=(body,), seconds=seconds)
    match question.wants:
        case "label":
            return said_(made.choice(("yes", "no", "neutral")))
        case "object":
            return said_(orjson.dumps({"label": made.choice("ab"), "confidence": "high"}).decode())
        case "same text":
            return said_("I can only help with questions about our products. Please ask another.")
        case "repeatable":
            return said_(sentence(made))
        case "call":
            call = {"index": 0, "id": f"call-{rng.random()}", "type": "function"}
            call["function"] = {"name": "list_files", "arguments": "{}"}
            return said_("", finish="tool_calls", message={"content": None, "tool_calls": [call]})
        case "reasoning":
            message = {"content": None, "reasoning_content": sentence(rng)}
            return said_("", finish="length", message=message)
        case "no text":
            return said_("", finish=made.choice(("length", "content_filter", "stop")), tokens=1)
        case "refusal":
            return Answer(status=400, parts=(orjson.dumps({"error": {"code": 400}}),))
        case "denial":
            return Answer(status=401, parts=(b"{}",))
    return said_(sentence(made if question.probe else rng))  # probes are greedy


# -- useless answers -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of useless answers.

    Args:
        name: what it is, in words.
        answer: the behavior.
        errs: whether its answers say that there was an error.
    """

    name: str
    answer: Behavior
    errs: bool = False


FLUENT = "I am sorry to hear that. Here is a long and helpful answer that fits no question at all."
TEXTS: dict[str, Callable[[random.Random], str]] = {
    "no text": lambda _rng: "",
    "blanks": lambda rng: rng.choice((" ", "\n\n", "\t", "\u00a0")),
    "an invisible character": lambda _rng: "\u200b",
    "an end token": lambda rng: rng.choice(("<|endoftext|>", "</s>", "<|im_end|>", "<eos>")),
    "one token": lambda rng: rng.choice(("!", " the", "\u2581", "0", "\ufffd", "ha ")) * 200,
    "one line again and again": lambda _rng: "so it is. " * 40,
    "one word": lambda _rng: "ok",
    "a fluent text": lambda _rng: FLUENT,
    "null": lambda _rng: "null",
    "a number": lambda _rng: "0",
}
FINISHES = (
    "stop",
    "length",
    "error",
    "content_filter",
    "abort",
    "tool_calls",
    "eos",
    None,
    "unknown",
)
REFUSALS = (*range(400, 419), 421, 422, *range(424, 429), 431, 451, 499, 501)
ODD_STATUSES = (600, 700, 999, 199, 520, 530, 505, 511, 204, 205, 302, 307, 304, 300)
ODD_TYPES = (
    "text/html",
    "text/plain",
    "application/xml",
    "application/problem+json",
    "",
    "image/png",
)
ERROR = {"error": {"message": "no", "type": "x", "code": 500}}


def draw(rng: random.Random) -> Form:
    """Draw a form from the grammar."""
    make = rng.choice(
        (_words, _words, _words, _refusal, _status, _typed, _stream, _document, _encoded)
    )
    return make(rng)


def _words(rng: random.Random) -> Form:
    name = rng.choice(list(TEXTS))
    text, finish = TEXTS[name](rng), rng.choice(FINISHES)
    tokens = rng.choice((None, 0, 1, 100))
    pace = rng.choice((0.001, 0.001, 0.02))
    return Form(
        name=f"{name}, {finish}, {tokens} tokens, {pace} s",
        answer=lambda question, _rng: said(
            question, text, finish=finish, tokens=tokens, seconds=pace
        ),
        errs=finish == "error",
    )


def _refusal(rng: random.Random) -> Form:
    status, good_probe = rng.choice(REFUSALS), rng.random() < 0.7
    body = orjson.dumps({"error": {"message": sentence(rng), "code": status}})

    def answer(question: Question, rng: random.Random) -> Answer:
        if question.probe and good_probe:
            return useful(question, rng)
        return Answer(status=status, parts=(body,))

    return Form(name=f"{status}{', but not to probes' if good_probe else ''}", answer=answer)


def _status(rng: random.Random) -> Form:
    status = rng.choice(ODD_STATUSES)
    body = rng.choice((b"", b"{}", orjson.dumps(ERROR)))
    return Form(
        name=f"{status} with {len(body)} bytes",
        answer=lambda _question, _rng: Answer(status=status, parts=(body,) if body else ()),
        errs=not 200 <= status < 500,
    )


def _typed(rng: random.Random) -> Form:
    kind = rng.choice(ODD_TYPES)
    body = rng.choice((b"<html>hello</html>", b"ok", b"{}", b"", b"\0" * 99))
    return Form(
        name=f"{kind or 'no type'}: {body[:8]!r}",
        answer=lambda _question, _rng: Answer(kind=kind, parts=(body,) if body else ()),
    )


def _stream(rng: random.Random) -> Form:
    role = {"model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
    end = {
        "model": "m",
        "choices": [{"index": 0, "delta": {}, "finish_reason": rng.choice(FINISHES)}],
    }
    usage = {"model": "m", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}
    drawn: list[Any] = rng.choices((role, end, usage, {}, [], ERROR, "ping"), k=rng.randint(0, 4))
    lines = [
        b": ping\n\n" if each == "ping" else b"data: " + orjson.dumps(each) + b"\n\n"
        for each in drawn
    ]
    is_done = rng.random() < 0.7
    parts = (*lines, *((b"data: [DONE]\n\n",) if is_done else ()))

    def answer(question: Question, _rng: random.Random) -> Answer:
        if question.stream:
            return Answer(kind=SSE, parts=parts)
        return Answer(parts=(orjson.dumps({"model": "m", "choices": []}),))

    errs = ERROR in drawn
    return Form(name=f"stream of {b''.join(parts)[:60]!r}", answer=answer, errs=errs)


def _document(rng: random.Random) -> Form:
    document: Any = rng.choice((
        {}, [], None, 7, "text", {"status": "ok"}, {"choices": None}, {"choices": [{}]},
        {"choices": [{"index": 0, "message": None}]}, {"detail": "not now"},
        {"choices": [{"message": {"content": [{"type": "text", "text": ""}]}}]}, {"data": []},
        {**ERROR}, {"error": {"message": "bad", "code": 400}}, {"error": "none", "choices": []},
        {"choices": [{"message": {"content": FLUENT}}], "model": "other"},
    ))  # fmt: skip
    body = orjson.dumps(document)
    errs = isinstance(document, dict) and "error" in document

    def answer(question: Question, _rng: random.Random) -> Answer:
        parts = (b"data: " + body + b"\n\n", b"data: [DONE]\n\n") if question.stream else (body,)
        return Answer(kind=SSE if question.stream else JSON, parts=parts)

    return Form(name=f"document {body[:60]!r}", answer=answer, errs=errs)


def _encoded(rng: random.Random) -> Form:
    encoding = rng.choice(("gzip", "br", "zstd", "deflate", "x-own"))
    inner = _words(rng)

    def answer(question: Question, rng: random.Random) -> Answer:
        plain = inner.answer(question, rng)
        return replace(plain, encoding=encoding, parts=(gzip.compress(b"".join(plain.parts)),))

    return Form(name=f"{encoding}: {inner.name}", answer=answer)


def _only(name: str, concerns: Callable[[Question], bool], status: int = 400) -> Form:
    """Return a form that refuses only some clients' requests, as with other options or keys."""
    document = orjson.dumps({"error": {"message": "no", "code": status}})
    refusal = Answer(status=status, parts=(document,))

    def answer(question: Question, rng: random.Random) -> Answer:
        refuses = concerns(question) and not question.probe
        return refusal if refuses else useful(question, rng)

    return Form(name=name, answer=answer)


def _text(name: str, text: str, finish: str = "stop", errs: bool = False) -> Form:
    return Form(name=name, errs=errs, answer=lambda q, _rng: said(q, text, finish=finish))


def _compressed(question: Question, _rng: random.Random) -> Answer:
    kind = SSE if question.stream else JSON
    return Answer(kind=kind, encoding="gzip", parts=(gzip.compress(b"{}"),))


CONCERNS: dict[str, Callable[[Question], bool]] = {
    "refuses tools": lambda question: question.tools,
    "refuses formats": lambda question: question.response_format,
    "refuses 4 KB": lambda question: len(question.text) > 4096,
}
"""The requests that some forms concern; others concern all."""

NAMED = {
    form.name: form
    for form in (
        _text("end token", "<|endoftext|>"),
        _text("error finish", "", "error", errs=True),
        _text("one token", "!" * 200),
        _text("fluent", FLUENT),
        Form(name="some word", answer=lambda q, rng: said(q, rng.choice(WORDS))),
        _only("400 to clients", lambda _question: True),
        _only("401 to clients", lambda _question: True, status=401),
        Form(
            name="status 999", answer=lambda _q, _rng: Answer(status=999, parts=(b"{}",)), errs=True
        ),
        Form(name="gzip", answer=_compressed),
        *(_only(name, concerns) for name, concerns in CONCERNS.items()),
    )
}
"""Forms that were found, by name."""


# -- a fleet in virtual time ---------------------------------------------------------------------


Clients = Callable[[random.Random], Question]
"""Draws a request."""


def _chat(rng: random.Random, **more: Any) -> Question:
    number = rng.getrandbits(60)
    given = {"text": f"{number} {sentence(rng, 20, 100)}", "stream": rng.random() < 0.5, **more}
    return Question(**given)


def _app(name: str, share: float, **more: Any) -> Clients:
    """Return clients of which a share use one application, with its system prompt."""
    system = f"{name}: " + "you are a part of an application. " * 300

    def draw(rng: random.Random) -> Question:
        if rng.random() >= share:
            return _chat(rng)
        given = {"system": system, **more}
        if given.get("session"):
            given["session"] = f"{name} {rng.randrange(40)}"
        return _chat(rng, **given)

    return draw


def _one(name: str, share: float, **more: Any) -> Clients:
    """Return clients, one of which sends a share of all requests, in one session."""
    return _app(name, share, **{"session": "", **more, "text": f"{name} " * 40})


WORKLOADS: dict[str, Clients] = {
    "chats": _chat,
    "labels only": _app("labels", 1.0, wants="label"),
    "labels and chats": _app("labels", 0.4, wants="label", session=True),
    "a choice of one token": _app("choice", 0.5, wants="label", max_tokens=1),
    "objects": _app("objects", 0.5, wants="object", response_format=True),
    "one text for most": _app("products", 0.5, wants="same text", session=True),
    "temperature 0, again and again": lambda rng: _chat(
        rng, text=f"question {rng.randrange(8)} " * 9, wants="repeatable"
    ),
    "calls": _app("agent", 0.6, wants="call", tools=True, session=True),
    "reasoning that ends at its limit": _app("reasons", 0.6, wants="reasoning", max_tokens=20),
    "answers without text": _app("stops", 0.4, wants="no text", max_tokens=1),
    "moderated": _app("moderated", 0.3, wants="refusal"),
    "a client's bad requests": _one("bad", 0.3, wants="refusal", tools=True),
    "a client's wrong key": _one("denied", 0.3, wants="denial"),
    "a client without text": _one("silent", 0.2, wants="no text"),
    "bad sessions of one application": _app("broken", 0.3, wants="refusal", session=True),
    "embeddings": lambda rng: _chat(rng, path="/v1/embeddings", stream=False, max_tokens=None),
}
"""Workloads with answers that look useless, although every endpoint is healthy."""


def questions(rng: random.Random) -> Iterator[Question]:
    """Yield clients' requests: chats of several lengths, some with tools or a response format."""
    for number in count():
        odd = rng.random()
        yield Question(
            text=f"{number} " + sentence(rng, 20, 1200 if odd < 0.3 else 100),
            stream=rng.random() < 0.5,
            max_tokens=rng.choice((None, 200, 1000)),
            tools=rng.random() < 0.3,
            response_format=rng.random() < 0.2,
        )


@dataclass
class Sent:
    """A request that was sent to an endpoint, and how it was answered."""

    at: float
    endpoint: int
    question: Question
    status: int


class Fleet:
    """Endpoints behind a production picker, in virtual time.

    Args:
        behave: the endpoints' behaviors.
        shape: how Envoy talks to the picker.
        seed: of all random numbers.
        asked: the clients' requests, in order.
        rate_per_s: how many of them come each second.
    """

    def __init__(
        self,
        behave: Sequence[Behavior],
        *,
        shape: Shape = Shape.NATIVE,
        seed: int = 1,
        asked: Iterator[Question] | None = None,
        rate_per_s: float = RATE_PER_S,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self._shape, self._behave, self._rate_per_s = shape, behave, rate_per_s
        addresses = [f"10.0.0.{number + 1}:8000" for number in range(len(behave))]
        self._specs = [EndpointSpec(address=address, models=("m",)) for address in addresses]
        settings = Settings.model_validate(
            {"endpoints": [{"address": address, "models": ["m"]} for address in addresses]}
        )
        self.picker = Picker(settings, seed=seed, clock=lambda: self.now)
        self.picker.table.replace("bench", self._specs)
        self.picker.health.questions.are_asked = True
        self._processor = ExternalProcessor(self.picker)
        self._at = {address: index for index, address in enumerate(addresses)}
        self._asked = questions(rng) if asked is None else asked
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.sent: list[Sent] = []
        self.read = 0
        self.probes = 0
        self.looks = self.out = 0
        """How often the endpoints' health was looked at, and how often one was excluded."""

    def run(self, seconds: float) -> None:
        """Send requests for `seconds`."""
        self._until = self.now + seconds
        self._later(0.0, self._next)
        self._later(0.0, self._probe)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def share(
        self,
        endpoint: int = 0,
        since: float = 0.0,
        until: float = 1e9,
        concerns: Callable[[Question], bool] = lambda _: True,
    ) -> float:
        """Return an endpoint's share of the requests sent in a time."""
        of = [s for s in self.sent if since <= s.at < until and concerns(s.question)]
        return sum(s.endpoint == endpoint for s in of) / max(1, len(of))

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _next(self) -> None:
        self._ask(next(self._asked))
        if self.now < self._until:
            self._later(self.rng.expovariate(self._rate_per_s), self._next)

    def _ask(self, question: Question) -> None:
        stream, body = Stream(self._processor.env), question.body
        headers = {":path": question.path, ":method": "POST", "content-type": JSON}
        if question.session:
            headers["x-laar-session"] = question.session
        if question.tenant:
            headers[FAIRNESS] = question.tenant
        if self._shape is Shape.NATIVE:  # laar's own Envoys keep the headers
            actions = stream.receive(
                RequestHeaders(headers, False, self._shape, attempts=1, body=body), self.now
            )
        else:
            stream.receive(RequestHeaders(headers, False, self._shape), self.now)
            actions = stream.receive(RequestBody(body, True), self.now)
        (ask,) = (action for action in actions if isinstance(action, Ask))
        decision = self._processor.ask_turn(ask.request, self.now)
        assert isinstance(decision, Decision)
        stream.receive(Decided(decision, 1), self.now)
        endpoint = self._at[decision.address]
        answer = self._behave[endpoint](question, self.rng)
        self.sent.append(Sent(self.now, endpoint, question, answer.status))
        has_head = question.stream and answer.kind == SSE
        head_s = 0.2 * answer.seconds if has_head else answer.seconds
        self._later(head_s, lambda: self._begin(stream, answer, answer.seconds - head_s))

    def _begin(self, stream: Stream, answer: Answer, rest_s: float) -> None:
        kind = media_type(answer.kind)
        status = answer.status if 100 <= answer.status < 600 else 599
        event = ResponseHeaders(status, kind == SSE, 5, not answer.parts, media_type=kind)
        event.encoded = bool(answer.encoding)
        actions = stream.receive(event, self.now)
        reads = self._shape is Shape.GATEWAY or any(
            isinstance(action, AnswerHeaders) and action.read_answer for action in actions
        )
        if not answer.parts:
            reads = False
        self.read += reads
        step_s = rest_s / max(1, len(answer.parts))
        for number, part in enumerate(answer.parts if reads else ()):
            self._later(step_s * number, partial(self._pass, stream, part))
        self._later(rest_s, lambda: self._end(stream, reads=reads))

    def _pass(self, stream: Stream, part: bytes) -> None:
        if not stream.answer.put_by(part, self.now):
            stream.receive(ResponseBody(part, False), self.now)

    def _end(self, stream: Stream, *, reads: bool) -> None:
        if reads:
            stream.receive(ResponseBody(b"", True), self.now)
        stream.receive(Closed(), self.now)

    def _look(self) -> None:
        """Count the endpoints that get no requests, or none of some kind."""
        health, table = self.picker.health, self.picker.table
        seen = health.records.refusals.seen.items()
        refusing = {endpoint.slot for (endpoint, _), of in seen if of.kinds}
        for spec in self._specs:
            slot = table.slot(spec.address)
            self.looks += 1
            self.out += slot in refusing or health.state(slot, self.now) in ("failing", "on trial")

    def _probe(self) -> None:
        self._look()
        questions_ = self.picker.health.questions
        for slot in questions_.due(self.now, 16):
            self.probes += 1
            spec = self.picker.table.spec(slot)
            question = Question(text="1", stream=True, max_tokens=8, probe=True)
            answer = self._behave[self._at[spec.address]](question, self.rng)
            self._later(answer.seconds, partial(self._probed, slot, spec, answer))
        if self.now < self._until:
            self._later(PROBE_EVERY_S, self._probe)

    def _probed(self, slot: int, spec: EndpointSpec, answer: Answer) -> None:
        reading = read_answer(cast(ClientResponse, _Read(answer)), spec)
        try:
            reading.send(None)
        except StopIteration as read:
            self.picker.health.questions.answered(slot, read.value, self.now, None)


class _Read:
    """An answer as the picker's probe reads it."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        self.headers = {"content-type": answer.kind}
        if answer.encoding:
            self.headers["content-encoding"] = answer.encoding
        self.content = self
        self._parts = list(answer.parts)

    async def readany(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""


# -- the command ---------------------------------------------------------------------------------


@dataclass
class Result:
    """The share that a form got of the requests it concerns, once laar had time to notice."""

    form: Form
    shape: str
    share: float
    late: float
    health: str
    probes: int

    @property
    def met(self) -> bool:
        """Whether the share is at most chance, or at most 1 % for answers that say "error"."""
        return self.share <= (ERRORS_AT_MOST if self.form.errs else CHANCE)


def measure(form: Form, shape: str, *, seconds: float = 25.0, seed: int = 1) -> Result:
    """Run a fleet with one useless endpoint."""
    fleet = Fleet([form.answer, *[useful] * (ENDPOINTS - 1)], shape=SHAPES[shape], seed=seed)
    fleet.run(seconds)
    concerns = CONCERNS.get(form.name, lambda _question: True)
    picker = fleet.picker
    slot = picker.table.slot("10.0.0.1:8000")
    return Result(
        form,
        shape,
        fleet.share(since=LEARNED_S, concerns=concerns),
        fleet.share(since=60.0, concerns=concerns),
        picker.health.state(slot, fleet.now),
        fleet.probes,
    )


def healthy(
    name: str, shape: str, *, endpoints: int = ENDPOINTS, seconds: float = 30.0, seed: int = 1
) -> Fleet:
    """Run a fleet of healthy endpoints with an odd workload."""
    rng = random.Random(seed)
    asked = (WORKLOADS[name](rng) for _ in repeat(None))
    fleet = Fleet([useful] * endpoints, shape=SHAPES[shape], seed=seed, asked=asked)
    fleet.run(seconds)
    return fleet


def figures(results: Sequence[Result]) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each target, the worst share, and the largest one that meets it."""
    drawn = [result for result in results if result.form.name not in NAMED]
    for name in ("one token", "fluent"):
        of = [result for result in results if result.form.name == name]
        yield f"{name}, after 10 s", max((r.share for r in of), default=0.0), CHANCE
        yield f"{name}, after a minute", max((r.late for r in of), default=0.0), LATE_AT_MOST
    for name, of, most in (
        (f"{len(drawn)} drawn forms", drawn, CHANCE),
        ("those that say error", [r for r in drawn if r.form.errs], ERRORS_AT_MOST),
        ("named forms", [r for r in results if r.form.name in NAMED], CHANCE),
    ):
        yield name, max((r.share for r in of), default=0.0), most


def main(argv: Sequence[str] | None = None) -> int:
    """Print the forms that missed their target, and the figures; exit with 3 if one missed."""
    parser = parser_for("useless", __doc__)
    parser.add_argument("--forms", type=int, default=200, help="forms to draw")
    parser.add_argument("--named", type=names_of(list(NAMED)), default=",".join(NAMED))
    parser.add_argument("--shapes", type=names_of(list(SHAPES)), default=",".join(SHAPES))
    parser.add_argument("--seconds", type=positive, default=13.0, help="for each drawn form")
    parser.add_argument("--seed", type=whole, default=1)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    plan = [
        (NAMED[name], shape, 75.0 if name in ("one token", "fluent") else 25.0)
        for name in options.named
        for shape in options.shapes
    ]
    shapes = cycle(options.shapes)
    plan += [(draw(rng), next(shapes), options.seconds) for _ in range(options.forms)]
    results = []
    for number, (form, shape, seconds) in enumerate(plan, 1):
        result = measure(form, shape, seconds=seconds, seed=options.seed)
        results.append(result)
        if not result.met or form.name in NAMED:
            print(
                f"{number:3}/{len(plan)} {'met   ' if result.met else 'MISSED'} {shape:8} "
                f"{result.share:6.1%} {result.probes:3} probes {result.health:9} {form.name}",
                flush=True,
            )
    for shape in options.shapes if options.named else ():
        for name in WORKLOADS:
            fleet = healthy(name, shape, seconds=25.0, seed=options.seed)
            print(
                f"healthy {shape:8} excluded {fleet.out / fleet.looks:6.1%} of the time, "
                f"{fleet.probes:3} probes, {fleet.read / len(fleet.sent):4.0%} read: {name}",
                flush=True,
            )
    missed = False
    for name, worst, most in figures(results):
        missed |= worst > most
        print(f"{'MISSED' if worst > most else 'met   '} {worst:6.1%} (at most {most:.0%}): {name}")
    return MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(main())
