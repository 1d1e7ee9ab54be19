"""Prompts are hashed in the order in which the chat template of their model renders them."""

import asyncio
import random

import numpy as np
import orjson
import pytest
from aiohttp import web

from laar.datalayer.chat_templates import TemplateProbes
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.probing import PROBES, template_of
from laar.prefix.templates import Template, template_for
from laar.protocol.openai import read_body
from laar.request import Api, Request
from laar_lab.sim.endpoint.bodies import ChatBody, TokenizeBody
from laar_lab.sim.endpoint.bodies import read_body as read_in_engine
from laar_lab.sim.endpoint.tokenizer import block_hashes
from support import eventually

TOLD = {
    "qwen3": Template(),
    "llama3.1": Template(keeps_thoughts=True),
    "mistral": Template(tools_last=True, keeps_thoughts=True),
    "gpt-oss": Template(keeps_thoughts=True),
}


def text(seed, chars):
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefgh ") for _ in range(chars))


def chat(system, tools, *said):
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": each} for role, each in zip(roles, said, strict=False)]
    listed = [{"type": "function", "function": {"name": "f", "description": tools}}]
    return orjson.dumps({"model": "m", "messages": messages, "tools": listed})


SYSTEM, TOOLS, ASKED = text(1, 4000), text(2, 8000), text(3, 3000)
PAIRS = {
    "another question": (chat(SYSTEM, TOOLS, "a"), chat(SYSTEM, TOOLS, "b")),
    "another system prompt": (chat("x" + SYSTEM, TOOLS, "a"), chat("y" + SYSTEM, TOOLS, "a")),
    "other tools": (chat(SYSTEM, TOOLS, "a"), chat(SYSTEM, text(4, 8000), "a")),
    "a second turn": (chat(SYSTEM, TOOLS, ASKED), chat(SYSTEM, TOOLS, ASKED, "Right.", "b")),
    "reasoning": (
        chat(SYSTEM, TOOLS, ASKED, f"<think>{text(5, 900)}</think>Right.", "b"),
        chat(SYSTEM, TOOLS, ASKED, f"<think>{text(6, 900)}</think>Right.", "b"),
    ),
}


def told(template):
    probes = [read_in_engine(TokenizeBody, orjson.dumps(each)) for each in PROBES]
    return template_of([each.ids(template) for each in probes])


def request(body):
    return Request(id="r", api=Api.CHAT, model="m", spans=read_body(Api.CHAT, body).spans)


def believed(beliefs, body):
    guess = np.ones(1)
    return beliefs.look_up(request(body), "", ("m",), guess, 0.0)


def found(template, one, other):
    """Return the share of the other rendered prompt's blocks that are in the first."""
    blocks = [
        block_hashes(read_in_engine(ChatBody, body).to_prompt(template).ids(), 16)
        for body in (one, other)
    ]
    return len(set(blocks[0]) & set(blocks[1])) / len(blocks[1])


@pytest.mark.parametrize("template", TOLD)
def test_the_tokenizer_reveals_the_order_of_a_template(template):
    learned = told(template)
    assert learned._replace(tools_weight=1.0) == TOLD[template]
    assert 0.5 < learned.tools_weight < 1.5


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("template", TOLD)
def test_shared_prefixes_match_the_rendered_prompts(template, pair):
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 22)
    beliefs.make_room(1)
    beliefs.templates["m"] = told(template)
    one, other = PAIRS[pair]
    beliefs.settle(beliefs.insert(0, believed(beliefs, one).chain, 0.0), None)
    shares = believed(beliefs, other).shares
    # A template adds instructions around tools, which are not in the body.
    assert shares[0] == pytest.approx(found(template, one, other), abs=0.08)


def test_an_alias_has_a_template_if_its_models_place_tools_alike():
    late = {"a": Template(tools_last=True), "b": Template(tools_last=True, tools_weight=0.8)}
    assert template_for("alias", ("a", "b"), late) == late["a"]
    assert template_for("alias", ("a", "b", "c"), late | {"c": Template()}) == Template()
    assert template_for("alias", ("a", "d"), late) == Template()


async def test_engines_are_asked_once_even_without_a_tokenizer(caplog):
    caplog.set_level("INFO", "laar.datalayer.chat_templates")
    asked = []

    async def tokenize(request):
        asked.append(await request.json())
        body = read_in_engine(TokenizeBody, orjson.dumps(asked[-1]))
        return web.json_response({"tokens": body.ids("mistral").tolist()})

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    runners, addresses = [], []
    for each in (app, web.Application()):
        runners.append(web.AppRunner(each, access_log=None))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        addresses.append(f"127.0.0.1:{runners[-1].addresses[0][1]}")
    table = EndpointTable()
    models = (("m", "adapter"), ("n",))
    specs = [EndpointSpec(address=a, models=m) for a, m in zip(addresses, models, strict=True)]
    table.replace("test", specs)
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    probes = TemplateProbes(beliefs, table)
    running = asyncio.create_task(probes.run())
    try:
        await eventually(lambda: probes._refused == {addresses[1]}, what="an answer of both")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for runner in runners:
            await runner.cleanup()
    assert [body["model"] for body in asked] == ["m"] * len(PROBES)
    assert set(beliefs.templates) == {"m", "adapter"}
    assert beliefs.templates["m"].tools_last
    assert caplog.messages == ["m: chat template learned (tools last, keeps thoughts)"]
