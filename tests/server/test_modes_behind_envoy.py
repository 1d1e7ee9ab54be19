"""Modes of a model through a real Envoy: a body gets the chosen mode's members, nothing else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import numpy as np
import orjson
import pytest

from laar.health.recent import Habit
from laar.plugins.modes import Modes
from support import Answer, eventually
from support.artifacts import artifact, model
from support.grids import crossed

pytestmark = pytest.mark.envoy

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
MODES = {
    "m": {
        "fast": {
            "chat": {"chat_template_kwargs": {"enable_thinking": False}},
            "messages": {"thinking": {"type": "disabled"}},
        }
    }
}
FAST = b'"chat_template_kwargs":{"enable_thinking":false},'
RETRY = {"x-laar-wrong-answer": "retry"}
BODY = b'{ "model" : "auto","messages":[{"role":"user","content":"hi \xc3\xa9"}] , "n":1}'


def thinks(upstream):
    """Answer as a model that is right only if it thinks."""

    def answer():
        said = "wrong" if b"enable_thinking" in upstream.requests[-1].body else "right"
        message = {"role": "assistant", "content": said}
        return Answer(body=orjson.dumps({"model": "m", "choices": [{"message": message}]}))

    upstream.chat_answer = answer


async def fleet(gateway, count=2, modes=MODES, **sections):
    """Start engines of a model, and a picker that knows how often its modes are right."""
    upstreams = [await gateway.upstream() for _ in range(count)]
    for upstream in upstreams:
        thinks(upstream)
    gateway.members(*((upstream.address, "m") for upstream in upstreams))
    cells = (("en", 512, "generic", 90),)
    slow = model(3.0, cells=cells, mean=0.95)
    assert slow.speed is not None
    slow = slow.model_copy(update={"speed": slow.speed.model_copy(update={"fixed_s": 30.0})})
    capability = gateway.directory / "capability.json"
    capability.write_bytes(artifact({"m": slow, "m:fast": model(0.5, cells=cells)}).dump())
    sections.setdefault("routing", {})["modes"] = modes
    runner = await gateway.picker(accuracy={"capability": str(capability)}, **sections)
    return upstreams, runner


async def post(http, envoy, path=CHAT, body=BODY, **headers):
    headers = {"content-type": "application/json", **headers}
    async with http.post(envoy.url() + path, data=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.read()


def bodies(upstreams):
    return [request.body for upstream in upstreams for request in upstream.asked]


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_a_client_that_asks_again_gets_the_fast_mode_and_then_the_model(gateway, http, shape):
    upstreams, runner = await fleet(gateway)
    envoy = await gateway.envoy(shape)
    body = BODY[:-1] + b', "temperature": 0}'
    status, headers, said = await post(http, envoy, body=body, **RETRY)
    assert (status, headers["x-laar-model"]) == (200, "m:fast")
    assert b"wrong" in said
    assert bodies(upstreams) == [b"{" + FAST + body.replace(b'"auto"', b'"m"')[1:]]
    tried = {"x-laar-tried-models": headers["x-laar-tried-models"]}
    status, headers, said = await post(http, envoy, body=body, **RETRY, **tried)
    assert (status, headers["x-laar-model"]) == (200, "m")
    assert (headers["x-laar-tried-models"], headers["x-laar-exhausted"]) == ("m:fast,m", "true")
    assert b"right" in said
    assert sum(FAST in body for body in bodies(upstreams)) == 1
    sampled, headers, _ = await post(http, envoy, **RETRY, **tried)  # another draw may be right
    assert (sampled, headers["x-laar-model"]) == (200, "m:fast")
    status, headers, said = await post(http, envoy)  # does not ask again: the model thinks
    assert (headers["x-laar-model"], b"right" in said) == ("m", True)
    async with http.post(
        gateway.url("admin", "/outcomes"),
        json={"decision_id": headers["x-laar-decision-id"], "correct": True},
    ) as answer:
        assert answer.status < 300
    async with http.get(gateway.url("admin", "/models")) as answer:
        served = {one["model"]: one["served"] for one in (await answer.json())["models"]}
    assert served == {"m": True, "m:fast": True}
    async with http.post(
        gateway.url("admin", "/explain"), json=orjson.loads(BODY), headers=RETRY
    ) as answer:
        shown = await answer.json()
    assert [row["model"] for row in shown["candidates"]] == ["m:fast"] * 2 + ["m"] * 2
    assert "m:fast" in shown["sentence"]
    page = runner.picker.observability.page
    right = np.mean([made.decision.view.probability for made in page.memory.latest(99)])
    assert [row["probability"] for row in page.fleet(0.0)["fleet"]] == pytest.approx([right] * 2)
    await eventually(lambda: not runner.picker.table.in_flight.any(), what="the ends")


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        *crossed(
            ["standalone", "gateway"],
            [
                {"chat_template_kwargs": {}},
                {"reasoning_effort": "high"},
                {"thinking": None},
                "signed",
                "no modes",
            ],
        )
    ],
    ids=str,
)
async def test_a_body_that_says_how_to_answer_or_is_signed_stays_as_it_is(
    gateway, http, shape, kept
):
    upstreams, _ = await fleet(gateway, modes={} if kept == "no modes" else MODES)
    envoy = await gateway.envoy(shape)
    headers = {"content-digest": "sha-256=:AAAA:"} if kept == "signed" else {}
    said = {} if isinstance(kept, str) else kept
    members = b"".join(b', "%b" :%b' % (k.encode(), orjson.dumps(v)) for k, v in said.items())
    body = BODY.replace(b'"auto"', b'"m"')[:-1] + members + b"}"
    status, answered, _ = await post(http, envoy, body=body, **RETRY, **headers)
    assert (status, answered["x-laar-model"]) == (200, "m")
    assert bodies(upstreams) == [body]


async def test_an_api_gets_its_own_members_and_others_none(gateway, http):
    upstreams, _ = await fleet(gateway)
    envoy = await gateway.envoy()
    asks = {
        MESSAGES: BODY.replace(b"}] ,", b'}],"max_tokens":9,'),
        "/v1/responses": b'{"model":"m","input":"hi"}',
        "/v1/completions": b'{"model":"m","prompt":"hi"}',
        "/v1/embeddings": b'{"model":"m","input":"hi"}',
        "/v1/audio/speech": b'{"model":"m","input":"hi"}',
    }
    for path, body in asks.items():
        assert (await post(http, envoy, path, body, **RETRY))[0] == 200
    sent = {request.path: request.body for up in upstreams for request in up.asked}
    assert sent.pop(MESSAGES).startswith(b'{"thinking":{"type":"disabled"}, "model" : "m"')
    assert sent == {path: body for path, body in asks.items() if path != MESSAGES}


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_envoys_retry_serves_the_mode_that_the_body_has(gateway, http, shape):
    upstreams, runner = await fleet(gateway, 3, routing={"fallbacks": 2})
    other = await gateway.upstream()
    gateway.members(*((up.address, "m") for up in upstreams), (other.address, "auto", "x"))
    await eventually(lambda: len(runner.picker.table) == 4, what="the other model")
    envoy = await gateway.envoy(shape)
    broken = upstreams[0]
    broken.chat_answer = Answer(status=503)
    answers = await asyncio.gather(*(post(http, envoy, **RETRY) for _ in range(12)))
    assert Counter(status for status, *_ in answers) == {200: 12}
    assert {headers["x-laar-model"] for _, headers, _ in answers} == {"m:fast"}
    assert broken.asked
    assert not other.asked
    assert all(body.startswith(b"{" + FAST) for body in bodies(upstreams))


async def test_a_long_body_in_many_chunks_gets_the_members_once(gateway, http):
    upstreams, _ = await fleet(gateway)
    envoy = await gateway.envoy("gateway")
    message = {"role": "user", "content": "hi"}
    text = orjson.dumps({"model": "m", "note": "x" * 1_500_000, "messages": [message]})
    body = b"\n {" + text[1:]

    async def chunks():
        for at in range(0, len(body), 100_000):
            yield body[at : at + 100_000]

    assert (await post(http, envoy, body=chunks(), **RETRY))[0] == 200
    assert bodies(upstreams) == [b"\n {" + FAST + text[1:]]


@pytest.mark.parametrize("way", ["no mode", "no model", "accepted"])
async def test_a_refused_mode_is_a_problem_until_it_is_accepted_or_gone(gateway, way):
    _, runner = await fleet(gateway)
    picker, now = runner.picker, time.monotonic()
    habits = picker.director.plugins.get(Modes)._refused._habits
    habits["m:fast"], habits["m"] = refused, usual = Habit(), Habit()
    for _ in range(20):
        refused.note(now, happened=True)
        usual.note(now, happened=False)
    await eventually(lambda: "modes engines" in picker.problems, what="it")
    assert "m:fast: not used" in picker.problems["modes engines"]
    if way == "no mode":
        routing = picker.settings.routing.model_copy(update={"modes": {}})
        settings = picker.settings.model_copy(update={"routing": routing})
        picker.apply(
            settings, picker.learning.assessor.capability, dict(picker.director.chooser.policies)
        )
    elif way == "no model":
        gateway.members(*((spec.address, "other") for spec in picker.table.specs()))
    else:
        habits["m:fast"] = usual
    await eventually(lambda: "modes engines" not in picker.problems, what="its end")
