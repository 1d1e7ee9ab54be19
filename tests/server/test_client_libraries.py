"""What an application sees of laar through the vendors' own libraries, with a real Envoy."""

from itertools import product

import orjson
import pytest

from laar.envoy.bootstrap import render
from laar.protocol.answers import error_document
from support import free_port
from support.clients import chat, post
from support.sockets import SocketEngine

pytestmark = pytest.mark.envoy

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
LONG = {"messages": [{"role": "user", "content": "x" * 20_000}]}
REFUSALS = [
    ("NotFoundError", "unknown-model", "`nope`", {"model": "nope"}),
    ("NotFoundError", "unknown-model", "`nope`", {"model": "nope", "stream": True}),
    ("BadRequestError", "no-model", "`model`", {"model": None}),
    ("APIStatusError", "body-too-large", "longer than 10000 bytes", LONG),
    ("InternalServerError", "no-answer", "`gone`", {"model": "gone"}),
]


@pytest.mark.parametrize("shape", ["standalone", "gateway", "full-duplex"])
async def test_refusals_raise_the_librarys_typed_errors(gateway, shape, http, figure):
    import anthropic  # these imports take a second, so only here
    import openai

    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"), (f"127.0.0.1:{free_port()}", "gone"))
    await gateway.picker(bodies={"max_body_bytes": 10_000})
    envoy = await gateway.envoy(shape)
    url, given = envoy.url(), {"api_key": "any", "max_retries": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", **given) as chats,
        anthropic.AsyncAnthropic(base_url=url, **given) as messages,
    ):
        for vendor, create in (
            (openai, chats.chat.completions.create),
            (anthropic, messages.messages.create),
        ):
            for kind, reason, word, fields in REFUSALS:
                with pytest.raises(getattr(vendor, kind), match=word) as raised:
                    await create(**HELLO | fields)
                error = raised.value
                code = error.code if vendor is openai else error.body["error"]["code"]
                assert code == error.response.headers["x-laar-reason"] == reason
                assert error.request_id == error.response.headers["x-request-id"], reason
        for models in (chats.models, messages.models):
            listed = [model.id async for model in models.list()]
            assert listed == ["gone", "m", "auto"]
        assert (await chats.models.retrieve("m")).owned_by == "laar"
        assert (await messages.models.retrieve("m")).display_name == "m"
    answer = await post(http, envoy, chat(model="nope"), **{"x-request-id": "mine"})
    assert answer.headers.getall("x-request-id") == answer.headers.getall("request-id") == ["mine"]
    assert orjson.loads(answer.body)["request_id"] == "mine"
    libraries = f"openai {openai.__version__}, anthropic {anthropic.__version__} for Python"
    figure(f"{libraries}: refusals as typed errors", f"{2 * len(REFUSALS)}", "all 10")


async def refuses(arrived):
    """Refuse a request before its body has arrived; Envoy often sees no more than a reset."""
    await arrived.answer(401, b'{"error":{"message":"who?"}}')


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_libraries_do_not_repeat_what_may_have_been_refused_unread(gateway, shape, figure):
    import anthropic
    import openai

    engine = await gateway.enter(SocketEngine(refuses))
    gateway.members((engine.address, "m"))
    await gateway.picker()
    url, calls = (await gateway.envoy(shape)).url(), 0
    long = {**HELLO, "messages": [{"role": "user", "content": "long " * 1_600_000}]}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as chats,
        anthropic.AsyncAnthropic(base_url=url, api_key="any") as messages,
    ):
        for vendor, create in (
            (openai, chats.chat.completions.create),
            (anthropic, messages.messages.create),
        ):
            for _ in range(3):
                calls += 1
                with pytest.raises(vendor.APIStatusError) as raised:
                    await create(**long)
                assert raised.value.status_code in (401, 503)
    figure(
        "uploads of a long body that engines refuse early, each", len(engine.arrived) / calls, "1"
    )
    assert len(engine.arrived) == calls


def test_every_error_of_laar_and_of_its_envoys_is_valid_in_both_apis():
    from anthropic.types import ErrorResponse
    from openai.types import ErrorObject

    statuses, request_ids = [*range(400, 432), *range(500, 512), 529], (None, "req-1")
    documents = [error_document(*why) for why in product(statuses, "r", "m", request_ids)]
    listener = render("gateway")["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    replies = manager["local_reply_config"]["mappers"]
    documents += [reply["body_format_override"]["json_format"] for reply in replies]
    documents += [
        orjson.loads(text)
        for route in manager["route_config"]["virtual_hosts"][0]["routes"]
        if (text := route.get("direct_response", {}).get("body", {}).get("inline_string"))
    ]
    assert len(documents) > 2 * len(statuses) + 6
    for document in documents:
        ErrorResponse.model_validate(document, strict=True)
        ErrorObject.model_validate(document["error"], strict=True)
        assert document["error"]["code"]
