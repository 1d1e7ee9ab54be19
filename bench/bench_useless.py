"""Measure the traffic of useless endpoints of five, whatever they answer, and of honest fast ones.

An honest endpoint answers in 60 ms. Forms of useless ones are drawn from a grammar: what they say,
how it is wrapped, their pace, whether they answer the picker's probes well, the API, how many of
them there are, at which places, and since when. The production picker and its stream machine run in
virtual time, with default settings. A share is that of the requests from ten seconds after the
onset on, for each useless endpoint; by chance it is .2.

    python -m bench useless
    python -m bench useless --forms 20 --seed 7 --shapes gateway
"""

from __future__ import annotations

import gzip
import heapq
import math
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
from bench.options import names_of, parser_for
from laar.core.decision import Decision
from laar.datalayer.asking import read_answer
from laar.fleet.membership import EndpointSpec
from laar.plugins.shares import FAST_LABEL
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
WORST, MEAN = 0.35, 0.1
CHANCE = 1.0 / ENDPOINTS

LEARNED_S = 10.0
PROBE_EVERY_S = 0.25
_OWN: dict[str, Callable[[str, list[str]], dict[str, Any]]] = {
    "embeddings": lambda _text, texts: {"input": texts},
    "rerank": lambda text, texts: {"query": text, "documents": texts},
    "completions": lambda text, _texts: {"prompt": text},
    "responses": lambda text, _texts: {"input": text},
}
"""Members of the bodies of other APIs than chats, by the ends of their paths."""
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
    inputs: int = 1

    @property
    def api(self) -> str:
        """The last part of the path; ``chat`` for chats."""
        return "chat" if self.path.endswith("/chat/completions") else self.path.rpartition("/")[2]

    @property
    def body(self) -> bytes:
        """The body."""
        if self.api == "transcriptions":  # a form, which is not read
            return b"--x\r\n\r\n" + self.text.encode()
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.text}]
        document: dict[str, Any] = {"model": "m", "stream": self.stream, "messages": messages}
        texts = [f"{self.text} {number}" for number in range(self.inputs)]
        if (api := self.api) in _OWN:
            document = {"model": "m", **_OWN[api](self.text, texts)}
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
    if (api := question.api) in _WHOLE:
        return Answer(
            parts=(orjson.dumps({"model": "m", **_WHOLE[api](text), "usage": usage}),),
            seconds=seconds,
        )
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


_WHOLE: dict[str, Callable[[str], dict[str, Any]]] = {
    "completions": lambda text: {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]},
    "messages": lambda text: {"content": [{"type": "text", "text": text}], "stop_reason": "stop"},
    "responses": lambda text: {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
    },
    "transcriptions": lambda text: {"text": text},
}
"""Answers in other APIs than chats, which are not streamed here."""


def listed(question: Question, items: Sequence[Any], seconds: float) -> Answer:
    """Return an answer to several inputs."""
    name = "results" if question.api == "rerank" else "data"
    return Answer(parts=(orjson.dumps({"model": "m", name: items}),), seconds=seconds)


def item(question: Question, number: int, width: int = 16) -> dict[str, Any]:
    """Return the good answer to one of several inputs."""
    made = random.Random(f"{question.text} {number}")
    if question.api == "rerank":
        return {"index": number, "relevance_score": made.random()}
    return {"index": number, "embedding": [made.gauss(0.0, 1.0) for _ in range(width)]}


def useful(question: Question, rng: random.Random) -> Answer:
    """Answer after 60 ms, as any healthy endpoint does."""
    seconds = ANSWER_S * rng.uniform(0.8, 1.2)
    made, said_ = random.Random(question.text), partial(said, question, seconds=seconds)
    if question.api in ("embeddings", "rerank"):
        return listed(question, [item(question, n) for n in range(question.inputs)], seconds)
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


Says = Callable[[Question, random.Random], str]
"""What a useless endpoint says."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of uselessness.

    Args:
        name: what it says, in words, and how it is wrapped.
        answer: how it answers a request, in `pace` times the time of an honest endpoint.
        pace: that factor.
        true: it answers the picker's probes as honest endpoints do.
        api: the API that clients use.
        places: which of the endpoints answer so.
        onset_s: from when on.
        like: whether nothing can tell it from an honest endpoint: its answers are as long, as
            various and of the same form, and its answers to probes repeat.
    """

    name: str
    answer: Callable[[Question, random.Random], Answer]
    pace: float
    true: bool
    api: str
    places: tuple[int, ...]
    onset_s: float
    like: bool = False

    def __str__(self) -> str:
        probes = ", true to probes" if self.true else ""
        since = f" from {self.onset_s:.0f} s" if self.onset_s else ""
        places = ", ".join(map(str, self.places))
        return f"{self.name}, in {self.pace:.2g} of the time{probes}, {self.api}, {places}{since}"

    def behavior(self, now: Callable[[], float]) -> Behavior:
        """Return how such an endpoint behaves."""

        def behave(question: Question, rng: random.Random) -> Answer:
            good = useful(question, rng)
            if now() < self.onset_s or (question.probe and self.true):
                return good
            return replace(self.answer(question, rng), seconds=self.pace * good.seconds)

        return behave


def truth(question: Question, rng: random.Random) -> str:
    """Return what an honest endpoint says."""
    return sentence(random.Random(question.text) if question.probe else rng)


def constant(rng: random.Random) -> tuple[str, Says, bool]:
    text = sentence(rng, 1, 60)
    return f"{text.count(' ') + 1} words", lambda _q, _rng: text, False


def _some(rng: random.Random) -> tuple[str, Says, bool]:
    texts = [sentence(rng) for _ in range(rng.randint(2, 6))]
    return f"one of {len(texts)} texts", lambda _q, r: r.choice(texts), False


def _random(rng: random.Random) -> tuple[str, Says, bool]:
    most = rng.choice((3, 20, 60))
    return f"up to {most} random words", lambda _q, r: sentence(r, most // 10 + 1, most), most == 60


def _part(rng: random.Random) -> tuple[str, Says, bool]:
    share = rng.uniform(0.05, 0.6)

    def says(question: Question, rng: random.Random) -> str:
        text = truth(question, rng)
        return text[: max(1, round(share * len(text)))]

    return f"{share:.0%} of the answer", says, False


def pieces(rng: random.Random) -> tuple[str, Says, bool]:
    piece = "".join(rng.choices("ab!0 \u200b\n\u2581\ufffd", k=rng.randint(1, 12)))
    number = rng.choice((1, 5, 200))
    return f"{piece!r} {number} times", lambda _q, _rng: piece * number, False


def _odd(rng: random.Random) -> tuple[str, Says, bool]:
    text = rng.choice(("", " ", "</s>", "<|endoftext|>", "null", "{}", "[]", "ok", "error"))
    return repr(text), lambda _q, _rng: text, False


def _echo(rng: random.Random) -> tuple[str, Says, bool]:
    chars = rng.choice((5, 50, 2000))
    return f"{chars} characters of the prompt", lambda q, _rng: q.text[:chars], chars > 50


SAYS = (constant, constant, _some, _random, _part, pieces, _odd, _echo)
FINISHES = ("stop", "stop", "length", "error", "content_filter", "tool_calls", None, "unknown")


def _plain(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    finish, tokens = rng.choice(FINISHES), rng.choice((None, None, 0, 1, 100))
    return f"finish {finish}, {tokens} tokens", lambda q, r: said(
        q, says(q, r), finish=finish, tokens=tokens
    )


def _member(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    name = rng.choice(("reasoning_content", "refusal", "tool_calls", "content"))

    def answer(question: Question, rng: random.Random) -> Answer:
        text = says(question, rng)
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": text}}
        value: Any = [call] if name == "tool_calls" else None if name == "content" else text
        return said(question, text, message={"role": "assistant", name: value})

    return f"{name} instead of content", answer


def _document(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    status = rng.choice((200, 200, 200, 204, 302, 400, 401, 404, 422, 429, 500, 503, 529, 999))
    kind = rng.choice((JSON, JSON, SSE, "text/html", "text/plain", "", "image/png"))
    encoding = rng.choice(("", "", "", "gzip", "br", "x-own"))
    made: Any = rng.choice((
        {}, [], None, 7, "text", {"choices": None}, {"choices": [{}]}, {"data": []}, {"output": []},
        {"error": {"message": "no", "code": status}}, {"error": "none", "choices": []}, b"",
        {"choices": [{"message": {"content": "some text"}}], "model": "other"}, b"<html>",
    ))  # fmt: skip
    body = made if isinstance(made, bytes) else orjson.dumps(made)
    if rng.random() < 0.3:
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    parts = (gzip.compress(body) if encoding == "gzip" else body,) if body else ()
    return f"{status} {kind} {encoding} {body[:50]!r}", lambda _q, _r: Answer(
        status=status, kind=kind, encoding=encoding, parts=parts
    )


def _cut(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    kept = rng.uniform(0.0, 0.9)

    def answer(question: Question, rng: random.Random) -> Answer:
        whole = said(question, says(question, rng))
        if len(whole.parts) < 2:
            return replace(whole, parts=(whole.parts[0][: int(kept * len(whole.parts[0]))],))
        return replace(whole, parts=whole.parts[: int(kept * len(whole.parts))])

    return f"cut at {kept:.0%}", answer


def _items(rng: random.Random) -> tuple[str, Behavior]:
    """Draw an answer to several inputs with too few or equal items, or items of another width."""
    share, width, same = rng.choice(((0, 16, False), (0.25, 16, False), (0.75, 16, False),
                                     (1, 16, True), (1, 8, False), (1, 64, True)))  # fmt: skip

    def answer(question: Question, rng: random.Random) -> Answer:
        about = replace(question, text="same") if same else question
        some = [item(about, 0 if same else n, width) for n in range(int(share * question.inputs))]
        return listed(question, some, 0.0)

    return f"{share:.0%} of the items, {width} wide{', all alike' * same}", answer


APIS = (
    *("chat", "chat", "chat", "completions", "messages", "responses"),
    *("embeddings", "rerank", "transcriptions"),
)


def draw(rng: random.Random, **fixed: Any) -> Form:
    """Draw a form; `fixed` are fields of it, and `says` and `wrap` parts of the grammar."""
    api = fixed.get("api") or rng.choice(APIS)
    onset_s = rng.choice((0.0, 0.0, 0.0, 5.0))
    most = 3 if onset_s else 2
    places = rng.sample(range(ENDPOINTS), rng.choice((1, 1, 1, 1, most)))
    pace = math.exp(rng.uniform(math.log(0.01), math.log(0.7)))
    given: dict[str, Any] = {
        "pace": pace,
        "true": rng.random() < 0.5,
        "onset_s": onset_s,
        "places": tuple(places),
    }
    like, source, wrap = False, fixed.pop("says", None), fixed.pop("wrap", None)
    if api in ("embeddings", "rerank"):
        name, answer = _items(rng)
    else:
        source = source or rng.choice(SAYS)
        name, says, various = source(rng)
        wraps = (_plain, _plain, _plain, _member, _document, _cut) if api == "chat" else (_plain,)
        wrap = wrap or rng.choice(wraps)
        how, answer = wrap(rng, says)
        name = f"{name}: {how}"
        like = various and (api != "chat" or "error" not in how) and wrap in (_plain, as_usual)
    given |= {"name": name, "answer": answer, "api": api, **fixed}
    # Words that are drawn again for each probe show themselves.
    return Form(**given, like=like and (given["true"] or source is _echo))


def as_usual(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    return "as usual", lambda q, r: said(q, says(q, r))


def _calls(rng: random.Random, says: Says) -> tuple[str, Behavior]:
    def answer(question: Question, rng: random.Random) -> Answer:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": says(question, rng)}}
        return said(question, "", message={"role": "assistant", "tool_calls": [call]})

    return "calls nobody offered", answer


def refuses(concerns: Callable[[Question], bool], status: int = 400) -> Behavior:
    """Return a behavior that refuses some clients' requests, as with other options or keys."""
    document = orjson.dumps({"error": {"message": "no", "code": status}})
    refusal = Answer(status=status, parts=(document,))

    def answer(question: Question, rng: random.Random) -> Answer:
        is_refused = concerns(question) and not question.probe
        return refusal if is_refused else useful(question, rng)

    return answer


REFUSED: dict[str, Callable[[Question], bool]] = {
    "tools": lambda question: question.tools,
    "formats": lambda question: question.response_format,
    "4 KB": lambda question: len(question.text) > 4096,
}
"""Requests that one endpoint may refuse."""


def _half(_rng: random.Random) -> tuple[str, Says, bool]:
    def says(question: Question, rng: random.Random) -> str:
        words = truth(question, rng).split()
        return " ".join(words[: len(words) // 2])

    return "half of the answer", says, False


def words(_rng: random.Random) -> tuple[str, Says, bool]:
    return "random words", lambda _q, rng: sentence(rng), True


ROWS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("one text for all, probe true", 0.2, {"says": constant, "true": True}),
    ("two alike", 0.2, {"says": pieces, "places": (0, 1)}),
    ("two alike", 0.2, {"says": constant, "places": (1, 3)}),
    ("two alike", 0.2, {"says": pieces, "places": (3, 4)}),
    ("a bad rollout", 0.2, {"says": constant, "places": (0, 1, 2), "onset_s": 5.0}),
    ("a bad rollout", 0.2, {"says": pieces, "places": (0, 2, 3, 4), "onset_s": 5.0}),
    ("too few items, or others", 0.25, {"wrap": None, "api": "embeddings", "true": True}),
    ("too few items, or others", 0.25, {"wrap": None, "api": "rerank", "true": True}),
    ("what nobody reads", 0.25, {"api": "transcriptions", "true": True}),
    ("plausible words, twice as fast", 0.35, {"says": words, "pace": 1 / 2}),
    ("plausible words, 4 times", 0.35, {"says": words, "pace": 1 / 4}),
    ("plausible words, 7 times", 0.35, {"says": words, "pace": 1 / 7}),
    ("halves", 0.25, {"says": _half, "true": True, "pace": 1 / 4}),
    ("calls that nobody offered", 0.2, {"says": words, "wrap": _calls, "true": True}),
)
"""The rows of the report: the largest share for each useless endpoint, and fields of the form."""
USUAL = {
    "wrap": as_usual,
    "api": "chat",
    "onset_s": 0.0,
    "pace": 0.02,
    "places": (0,),
    "true": False,
}
"""What the rows do not say."""


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


def asked_of(api: str, rng: random.Random) -> Iterator[Question]:
    """Return clients' requests of an API."""
    if api == "chat":
        return questions(rng)
    path = {"rerank": "/rerank", "transcriptions": "/v1/audio/transcriptions"}.get(
        api, f"/v1/{api}"
    )
    inputs = 4 if api in ("embeddings", "rerank") else 1
    limit = 200 if api in ("messages", "completions") else None
    return (
        Question(
            text=f"{number} {sentence(rng, 20, 100)}", path=path, inputs=inputs, max_tokens=limit
        )
        for number in count()
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
        policy: str = "laar",
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self._shape, self.behave, self._rate_per_s = shape, [*behave], rate_per_s
        addresses = [f"10.0.0.{number + 1}:8000" for number in range(len(behave))]
        self._specs = [EndpointSpec(address=address, models=("m",)) for address in addresses]
        settings = Settings.model_validate(
            {
                "endpoints": [{"address": address, "models": ["m"]} for address in addresses],
                "routing": {"policy": policy},
            }
        )
        self.picker = Picker(settings, seed=seed, clock=lambda: self.now)
        self.picker.table.replace("bench", self._specs)
        self.picker.health.questions.are_asked = True
        self._processor = ExternalProcessor(self.picker)
        self._processor.later = self._later
        self._at = {address: index for index, address in enumerate(addresses)}
        self._asked = questions(rng) if asked is None else asked
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
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
            self._due, _, event = heapq.heappop(self._events)
            self.now = max(self.now, self._due)
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

    def confirm(self, endpoint: int) -> None:
        """Label an endpoint as fast."""
        self._specs[endpoint] = replace(self._specs[endpoint], labels={FAST_LABEL: "true"})
        self.picker.table.replace("bench", self._specs)

    def _later(self, seconds: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _next(self) -> None:
        self._ask(next(self._asked))
        if self.now < self._until:
            self._later(self.rng.expovariate(self._rate_per_s), self._next)

    def _ask(self, question: Question) -> None:
        stream, body = Stream(self._processor.env), question.body
        headers = {":path": question.path, ":method": "POST", "content-type": JSON}
        if question.api == "transcriptions":
            headers["content-type"] = "multipart/form-data; boundary=x"
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
        answer = self.behave[endpoint](question, self.rng)
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
            answer = self.behave[self._at[spec.address]](question, self.rng)
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


def measure(form: Form, shape: str = "native", *, seed: int = 1, seconds: float = 16.0) -> float:
    """Return the share that each of the useless endpoints gets from 10 s after the onset on."""
    asked = asked_of(form.api, random.Random(seed))
    fleet = Fleet([useful] * ENDPOINTS, shape=SHAPES[shape], seed=seed, asked=asked)
    for place in form.places:
        fleet.behave[place] = form.behavior(lambda: fleet.now)
    fleet.run(form.onset_s + seconds)
    since = form.onset_s + LEARNED_S
    return sum(fleet.share(at, since=since) for at in form.places) / len(form.places)


def honest(times: float, shape: str, *, confirmed: bool, seed: int = 1) -> float:
    """Return the share of one of five that is faster than its siblings, after 30 s.

    Its answers to probes differ from theirs; `confirmed` if the operator says that it is fast.
    """

    def quick(question: Question, rng: random.Random) -> Answer:
        own = replace(question, text=f"{question.text} again") if question.probe else question
        answer = useful(own, rng)
        return replace(answer, seconds=answer.seconds / times)

    fleet = Fleet([useful] * ENDPOINTS, shape=SHAPES[shape], seed=seed)
    fleet.behave[2] = quick
    if confirmed:
        fleet.confirm(2)
    fleet.run(40.0)
    return fleet.share(2, since=30.0)


def healthy(
    name: str, shape: str, *, endpoints: int = ENDPOINTS, seconds: float = 30.0, seed: int = 1
) -> Fleet:
    """Run a fleet of healthy endpoints with an odd workload, placed by load and not by caches."""
    rng = random.Random(seed)
    asked = (WORKLOADS[name](rng) for _ in repeat(None))
    equal, policy = [useful] * endpoints, "least-loaded"
    fleet = Fleet(equal, shape=SHAPES[shape], seed=seed, asked=asked, policy=policy)
    fleet.run(seconds)
    return fleet


def rows(shape: str, seed: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each row of the report, the worst share, and the largest that meets it."""
    rng = random.Random(seed)
    for name, most, fixed in ROWS:
        form = draw(rng, **{**USUAL, **fixed})
        yield f"{name}: {form}", measure(form, shape, seed=seed), most
    for name, concerns in REFUSED.items():
        fleet = Fleet([refuses(concerns), *[useful] * 4], shape=SHAPES[shape], seed=seed)
        fleet.run(25.0)
        yield f"refuses {name}: of those", fleet.share(since=LEARNED_S, concerns=concerns), 0.11
    for times in (2.0, 5.0, 20.0):
        own, best = (honest(times, shape, confirmed=known, seed=seed) for known in (False, True))
        yield f"honest, {times:.0f} times as fast: what it lacks", 1.0 - own / best, 0.1
    for name in WORKLOADS:
        fleet = healthy(name, shape, seconds=25.0, seed=seed)
        far = max(abs(ENDPOINTS * fleet.share(at) - 1.0) for at in range(ENDPOINTS))
        out = f"excluded {fleet.out / fleet.looks:.0%}, {fleet.read / len(fleet.sent):.0%} read"
        yield f"all honest, {name} ({out}): furthest from fair", far, 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows of the report, and the drawn forms above chance; exit with 3 if one missed."""
    parser = parser_for("useless", __doc__)
    parser.add_argument("--forms", type=int, default=200, help="forms to draw")
    parser.add_argument("--no-rows", action="store_true", help="only the drawn forms")
    parser.add_argument("--shapes", type=names_of(list(SHAPES)), default=",".join(SHAPES))
    parser.add_argument("--seed", type=whole, default=1)
    options = parser.parse_args(argv)
    missed = False
    for shape in () if options.no_rows else options.shapes:
        for name, value, most in rows(shape, options.seed):
            missed |= value > most + 0.01
            word = "met   " if value <= most + 0.01 else "MISSED"
            print(f"{word} {value:4.2f} (at most {most:.2f}) {shape:8} {name}", flush=True)
    rng, shapes = random.Random(options.seed), cycle(options.shapes)
    told, like = [0.0], [0.0]
    for _ in range(options.forms):
        form, shape = draw(rng), next(shapes)
        share = measure(form, shape, seed=options.seed)
        (like if form.like else told).append(share)
        if share > CHANCE + 0.02:
            print(f"{share:4.2f} {shape:8} {form}", flush=True)
    del told[0], like[0]
    for name, shares in (("forms", told), ("forms like honest fast engines", like)):
        if shares:
            mean = sum(shares) / len(shares)
            print(f"{len(shares)} {name}: worst {max(shares):.2f}, mean {mean:.3f}")
    missed |= max(told, default=0.0) > WORST or sum(told) > MEAN * len(told)
    return MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(main())
