"""GET /v1/models through a real Envoy lists the models of all endpoints."""

from functools import partial

import pytest

from laar.datalayer import served_names
from support import Answer, eventually

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]
OWN = Answer(body=b'{"object":"list","data":[{"id":"own","object":"model"}]}')
BASE = {"id": "m", "root": "org/m", "parent": None}
ADAPTER = {"id": "lora", "root": "/loras/one", "parent": "m"}


async def ask_adapter(http, url):
    """Return the status of a request for the adapter, and who answered."""
    body = {"model": "lora", "prompt": "hello"}
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        return answer.status, answer.headers.get("x-upstream")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_sees_the_whole_fleet_and_its_aliases(gateway, http, shape):
    import openai  # this import takes a second, so only here

    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "small"), (b.address, "org/large"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    async with openai.AsyncOpenAI(base_url=f"{envoy.url()}/v1", api_key="-") as client:
        assert [model.id async for model in client.models.list()] == ["org/large", "small", "auto"]
        for name in ("small", "org/large", "auto"):  # the client escapes the slash
            assert (await client.models.retrieve(name)).id == name
        listed = await client.models.with_raw_response.list()
        assert listed.headers["x-laar-reason"] == "models"
        with pytest.raises(openai.NotFoundError) as error:
            await client.models.retrieve("smal")
    assert error.value.body["message"] == "the model `smal` does not exist"
    assert not a.asked
    assert not b.asked


@pytest.mark.parametrize("routing", [{"list_models": False}, {"mode": "shadow"}])
async def test_an_endpoint_answers_the_list_if_the_picker_may_not(gateway, http, routing):
    a = await gateway.upstream()
    gateway.members((a.address, "m"))
    a.default_answer = OWN
    await gateway.picker(routing=routing)
    envoy = await gateway.envoy()
    for path in ("/v1/models", "/v1/models/m"):
        async with http.get(envoy.url() + path) as answer:
            assert (await answer.json())["data"][0]["id"] == "own"


async def test_an_adapter_that_an_engine_loads_is_listed_and_reached(gateway, http, monkeypatch):
    soon = partial(served_names.ServedNames, interval_s=0.1)
    monkeypatch.setattr("laar.server.collectors.ServedNames", soon)
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "m"), (b.address, "m"))
    a.models, b.models = [BASE], [BASE]
    await gateway.picker()
    url = (await gateway.envoy()).url()

    async def listed():
        async with http.get(f"{url}/v1/models") as answer:
            return {entry["id"]: entry.get("parent") for entry in (await answer.json())["data"]}

    async def is_listed(wanted):
        return await listed() == wanted

    without = {"m": None, "auto": None}
    assert (await ask_adapter(http, url))[0] == 404
    b.models = [BASE, ADAPTER]
    await eventually(lambda: is_listed({"lora": "m", **without}), what="the adapter")
    assert [await ask_adapter(http, url) for _ in range(5)] == [(200, b.address)] * 5
    b.models = [BASE]
    await eventually(lambda: is_listed(without), what="the adapter to leave the list")
    assert (await ask_adapter(http, url))[0] == 503  # another engine may load it


async def test_unknown_and_rejected_names_cause_an_early_lookup(gateway, http, monkeypatch):
    """Engines load and unload adapters between two polls of their lists."""
    monkeypatch.setattr(served_names, "DOUBT_S", 0.05)
    monkeypatch.setattr(served_names, "DOUBT_ALL_S", 0.05)
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "m"), (b.address, "m"))
    a.models, b.models = [BASE], [BASE]
    runner = await gateway.picker()
    url = (await gateway.envoy()).url()

    def are_looked_at():
        return all(any(r.path == "/v1/models" for r in each.requests) for each in (a, b))

    await eventually(are_looked_at, what="the first model lists")

    def is_listed_at(upstream):
        table = runner.picker.table
        return table.serving("lora").tolist() == [table.slot(upstream.address)]

    async def is_answered_by(wanted):
        return await ask_adapter(http, url) == (200, wanted.address)

    assert (await ask_adapter(http, url))[0] == 404
    a.models = [BASE, ADAPTER]
    await eventually(lambda: is_answered_by(a), what="an adapter that was loaded")
    a.models, b.models = [BASE], [BASE, ADAPTER]
    a.default_answer = Answer(status=404)
    assert (await ask_adapter(http, url))[0] == 404
    await eventually(lambda: is_listed_at(b), what="the other endpoint's model list")
    await eventually(lambda: is_answered_by(b), what="answers by the one that serves it now")
    assert [await ask_adapter(http, url) for _ in range(3)] == [(200, b.address)] * 3
