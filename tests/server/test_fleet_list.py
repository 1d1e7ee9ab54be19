"""GET /v1/models behind a real Envoy: one list, whichever endpoint is near."""

import openai
import pytest

from support import Answer

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway"]
OWN = Answer(body=b'{"object":"list","data":[{"id":"own","object":"model"}]}')


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_sees_the_whole_fleet_and_its_aliases(gateway, http, shape):
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "small"), (b.address, "large"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    async with openai.AsyncOpenAI(base_url=f"{envoy.url()}/v1", api_key="-") as client:
        assert [model.id async for model in client.models.list()] == ["large", "small", "auto"]
    assert not a.asked
    assert not b.asked
    async with http.get(f"{envoy.url()}/v1/models/small") as answer:
        assert answer.headers["x-upstream"] in (a.address, b.address)


@pytest.mark.parametrize("routing", [{"list_models": False}, {"mode": "shadow"}])
async def test_an_endpoint_answers_where_the_picker_is_not_to(gateway, http, routing):
    a = await gateway.upstream()
    gateway.members((a.address, "m"))
    a.default_answer = OWN
    await gateway.picker(routing=routing)
    envoy = await gateway.envoy()
    async with http.get(f"{envoy.url()}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "own"
