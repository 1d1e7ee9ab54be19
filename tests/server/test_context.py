"""The context hook with a real Envoy: what endpoints receive, and what the pages report."""

from __future__ import annotations

import random
import re

import orjson
import pytest

from laar.context.notes import order_note
from laar.protocol.headers import Head
from laar.protocol.sessions import UNNAMED
from laar.request import Api
from laar.server.picker import Picker
from laar.settings import Settings
from support import Answer, metric
from support.clients import post

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]
ON = {"name": "rag", "mode": "on", "holdout_share": 0.0}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PATHS["responses"] = "/v1/responses"


def document(i):
    words = " ".join(f"w{(i * 7919 + k) % 1000}" for k in range(60))
    return f'<document id="d{i}">\nDocument number {i}. {words}\n</document>'


def block(ids):
    return "<documents>\n" + "\n".join(map(document, ids)) + "\n</documents>"


def text(ids, question="What is it?"):
    return f"{block(ids)}\n\n{question}"


def raw(value, api="chat"):
    """Return a body with spacing, escapes and numbers that a JSON writer would not reproduce."""
    content = orjson.dumps(value)
    given = {
        "chat": b'"messages" : [ {"role":"system","content":"Be\\u0020brief."},'
        b' {"role":"user", "content":%s} ]' % content,
        "completions": b'"prompt":  %s' % content,
        "responses": b'"input" :[{"role":"user","content":%s}]' % content,
    }[api]
    return b' {"model":"m", "seed":12345678901234567890, %s ,\n"temperature":1.00} ' % given


def reasons(runner, reason, route="rag"):
    return metric(runner, f'laar_context_requests_total{{reason="{reason}",route="{route}"}}')


class Place:
    """One endpoint behind picker and Envoy."""

    def __init__(self, http, upstream, gateway, envoy):
        self.http, self.upstream, self.gateway, self.envoy = http, upstream, gateway, envoy
        self.runner = gateway.runner

    async def send(self, body, path=PATHS["chat"], **headers):
        """Send a request; return the body that the endpoint received."""
        status, *_ = await post(self.http, self.envoy, body, path, **headers)
        assert status == 200
        return self.upstream.asked[-1].body

    async def shown(self, path="/context", method="GET"):
        async with self.http.request(method, self.gateway.url("admin", path)) as answer:
            return answer.status, await answer.json()


@pytest.fixture
def place(gateway, http):
    async def start(shape, *routes, **sections):
        upstream = await gateway.upstream()
        gateway.members((upstream.address, "m"))
        await gateway.picker(context={"routes": list(routes)}, **sections)
        tenant_header = gateway.settings.flow.tenant_header
        envoy = await gateway.envoy(shape, tenant_header=tenant_header, trust_gateway_headers=True)
        return Place(http, upstream, gateway, envoy)

    return start


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("api", PATHS)
async def test_documents_arrive_in_the_earlier_order_and_all_else_byte_for_byte(place, shape, api):
    there = await place(shape, ON)
    first = raw(text([2, 1, 4]), api)
    assert await there.send(first, PATHS[api]) == first
    note = order_note(["d2", "d1", "d4", "d9"], [1, 3, 2, 0])
    want = raw(f"{block([2, 1, 4, 9])}\n{note}\n\nAnd?", api)
    assert await there.send(raw(text([1, 9, 4, 2], "And?"), api), PATHS[api]) == want
    last = there.upstream.asked[-1]
    if "content-length" in last.headers:
        assert int(last.headers["content-length"]) == len(want)
    assert reasons(there.runner, "reordered") == 1


def prose(i):
    return f"Article number {i} is about " + " ".join(f"w{(i * 31 + k) % 1000}" for k in range(60))


def sources(ids):
    """Return sources in Open WebUI's format, numbered by position."""
    listed = "\n".join(
        f'<source id="{n}" name="{i}.pdf">{prose(i)}</source>' for n, i in enumerate(ids, 1)
    )
    return f"Cite as [id].\n\n<context>\n{listed}\n</context>\n\nWhy?"


ALL_READ = {"sample_answers": 1.0}
SOURCE = re.compile(r'<source id="(\d+)" name="(\d+)\.pdf">')


@pytest.mark.parametrize("shape", [*SHAPES, "gateway"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_numbered_documents_move_and_answers_cite_the_original_numbers(place, shape, stream):
    there = await place(shape, ON, bodies=ALL_READ)
    rng = random.Random(5)
    answers: list[str] = []

    def event(text, reason=None):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        return b"data: %s\n\n" % orjson.dumps({"choices": [choice]})

    async def pieces(said):
        """Split within words, ids and events."""
        wire = b""
        while said:
            size = rng.randint(1, 7)
            wire, said = wire + event(said[:size]), said[size:]
        wire += event("", "stop") + b"data: [DONE]\n\n"
        while wire:
            size = rng.randint(1, 300)
            yield wire[:size]
            wire = wire[size:]

    def answer():
        """Return the names that the documents have in the prompt, in the prompt's order."""
        prompt = orjson.loads(there.upstream.asked[-1].body)["messages"][0]["content"]
        named = SOURCE.findall(prompt)
        said = "".join(f"{name} is in [{own}], source {own}. " for own, name in named)
        answers.append(said)
        if stream:
            return Answer.sse(pieces(said))
        message = {"role": "assistant", "content": said}
        made = orjson.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
        return Answer(body=made, headers={"content-type": "application/json"})

    there.upstream.chat_answer = answer
    moved = 0
    for _ in range(12):
        ids = rng.sample(range(7), 4)
        message = {"role": "user", "content": sources(ids)}
        given = orjson.dumps({"model": "m", "stream": stream, "messages": [message]})
        status, _, got = await post(there.http, there.envoy, given)
        assert status == 200
        events = [line[5:].strip() for line in got.split(b"\n") if line.startswith(b"data: {")]
        choices = [orjson.loads(e)["choices"][0] for e in (events if stream else [got])]
        said = "".join((c.get("delta") or c["message"])["content"] for c in choices)
        cited = re.findall(r"(\d+) is in \[(\d+)\], source (\d+)\.", said)
        assert sorted(cited) == sorted((str(i), str(n), str(n)) for n, i in enumerate(ids, 1))
        moved += said != answers[-1]
    assert moved > 5
    assert reasons(there.runner, "reordered") > 5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("routes", "headers"),
    [
        ((), [{}]),
        (({**ON, "mode": "off"},), [{}]),
        (({**ON, "mode": "off"}, {**ON, "name": "behind"}), [{}]),
        (({**ON, "mode": "observe"},), [{}]),
        (
            (ON,),
            [
                {"x-laar-context": "off"},
                {"x-laar-context": "OFF"},
                {"content-digest": "sha-256=:abc=:"},
            ],
        ),
        (({**ON, "models": ["other"]}, {**ON, "name": "v2", "path": "/v2/"}), [{}]),
        (({**ON, "holdout_share": 0.9999},), [{}]),
    ],
)
async def test_the_same_bytes_arrive_in_modes_off_and_observe(place, shape, routes, headers):
    there = await place(shape, *routes)
    for sent in headers:
        for ids in ([2, 1, 4], [1, 9, 4, 2], [4, 2, 1]):
            body = raw(text(ids))
            assert await there.send(body, **sent) == body
    assert all("x-laar-context" not in r.headers for r in there.upstream.asked)


def usage(cached):
    details = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}
    return Answer(body=orjson.dumps({"usage": details}))


GUARDED = {**ON, "holdout_share": 0.5}
REQUESTS = 8
"""Conversations after which the guard judges in these tests."""


@pytest.fixture(autouse=True)
def judged_soon(monkeypatch):
    monkeypatch.setattr("laar.context.guard.MIN_REQUESTS", REQUESTS)
    monkeypatch.setattr("laar.context.guard.WINDOW", 4)


async def served(there, rounds, cached, enough=lambda: True):
    """Send requests with `cached` of 100 tokens until the guard has judged `rounds` of them."""
    rng = random.Random(11)
    ids = list(range(8))

    async def judged():
        return (await there.shown())[1]["routes"][0]["guard"]["requests_seen"]

    for _ in range(200):
        if await judged() >= rounds and enough():
            return
        rng.shuffle(ids)
        there.upstream.script(usage(cached))
        await there.send(raw(text(ids)))
    raise AssertionError(await judged())


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_hook_switches_itself_off_without_a_gain_and_reports_it(place, shape):
    there = await place(shape, GUARDED, bodies=ALL_READ)

    def off():
        return metric(there.runner, 'laar_context_off{route="rag"}') == 1

    await served(there, 8, 40, off)
    assert "switched itself off" in there.runner.picker.problems["context rag"]
    body = raw(text([7, 6, 5, 4, 3, 2, 1, 0]))
    assert await there.send(body) == body
    (route,) = (await there.shown())[1]["routes"]
    assert route["guard"]["state"] == "off"
    assert route["guard"]["gain"]["cached_share"] == pytest.approx(0.0, abs=0.01)


async def test_an_error_in_the_hook_costs_the_gain_but_not_the_request(place, monkeypatch):
    there = await place("standalone", ON)
    monkeypatch.setattr("laar.context.turn.TurnPlanner.plan", lambda *_: 1 / 0)
    body = raw(text([2, 1, 4]))
    assert await there.send(body) == body
    assert metric(there.runner, 'laar_degraded_total{what="context"}') >= 1


def test_an_order_is_learned_after_sending_and_before_the_next_body():
    settings = Settings.model_validate({"context": {"routes": [ON]}, "endpoints_file": "e.yaml"})
    hooks = Picker(settings, seed=1, clock=lambda: 0.0).context
    due = []
    hooks.later = due.append
    names = ("method", "id", "tenant")
    plain = dict.fromkeys(names, "")
    head = Head(path=PATHS["chat"], upgrade=False, signed=False, control=(), named=UNNAMED, **plain)
    call = {"api": Api.CHAT, "model": "m", "head": head, "may_change": True, "shows_answer": True}
    hook = hooks.orderings[0].hook
    hooks.apply(raw(text(range(8))), now=0.0, **call)
    assert (len(due), hook.stats()["index_orders"]) == (1, 0)
    made = hooks.apply(raw(text(range(8, 16))), now=1.0, **call)
    assert hook.stats()["index_orders"] == 1
    due[1]()
    assert hook.stats()["index_orders"] == 2
    made.refused()
    due[2]()
    assert hook.stats()["index_orders"] == 1
