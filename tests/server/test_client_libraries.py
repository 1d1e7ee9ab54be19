"""What an application sees of laar through OpenAI's own library, with a real Envoy."""

import pytest

from support import free_port

pytestmark = pytest.mark.envoy

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LONG = {"messages": [{"role": "user", "content": "x" * 20_000}]}


@pytest.mark.parametrize("shape", ["standalone", "gateway", "full-duplex"])
async def test_refusals_raise_the_librarys_typed_errors(gateway, shape):
    import openai  # this import takes a second, so only here

    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"), (f"127.0.0.1:{free_port()}", "gone"))
    await gateway.picker(bodies={"max_body_bytes": 10_000})
    url = f"{(await gateway.envoy(shape)).url()}/v1"
    cases = [
        (openai.NotFoundError, "unknown-model", "`nope`", {"model": "nope"}),
        (openai.NotFoundError, "unknown-model", "`nope`", {"model": "nope", "stream": True}),
        (openai.BadRequestError, "no-model", "`model`", {"model": None}),
        (openai.APIStatusError, "body-too-large", "longer", LONG),
        (openai.InternalServerError, "no-answer", "`gone`", {"model": "gone"}),
    ]
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        for kind, reason, word, fields in cases:
            with pytest.raises(kind, match=word) as raised:
                await client.chat.completions.create(**HELLO | fields)
            error = raised.value
            assert error.body["reason"] == error.response.headers["x-laar-reason"] == reason
            assert str(error.code) == str(error.status_code), reason
            assert error.request_id, reason
        listed = [model.id async for model in client.models.list()]
        assert listed == ["gone", "m", "auto"]
        assert (await client.models.retrieve("m")).owned_by == "laar"
