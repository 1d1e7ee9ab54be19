"""Files, batches and conversations that engines store, through a real Envoy.

The stand-in below answers as OpenAI documents its Files, Batches and Conversations APIs; requests
for other objects get 404.
"""

import aiohttp
import pytest
from aiohttp import web

from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Engine(ServedEngine):
    """An engine that stores files, batches and conversations in memory, or other `kinds`."""

    def __init__(self, number, kinds=("files", "batches", "conversations", "uploads")):
        self.number = number
        self.kinds = kinds
        self.stored = {}

    def _route(self, router):
        router.add_get("/v1/models", self.models)
        router.add_get("/health", self.healthy)
        router.add_get("/metrics", self.healthy)
        for kind in self.kinds:
            router.add_post(f"/v1/{kind}", getattr(self, f"new_{kind}"))
            router.add_get(f"/v1/{kind}", self.all_of)
            router.add_get(f"/v1/{kind}/{{id}}", self.one)
            router.add_get(f"/v1/{kind}/{{id}}/{{rest:.*}}", self.one)
            router.add_post(f"/v1/{kind}/{{id}}", self.one)
        router.add_post("/v1/uploads/{id}/parts", self.one)
        router.add_post("/v1/responses", self.respond)

    async def healthy(self, _request):
        return web.Response()

    def answer(self, document, status=200):
        return web.json_response(document, status=status, headers={"x-engine": str(self.number)})

    def missing(self):
        return self.answer({"error": {"message": "not found"}}, 404)

    def add(self, kind, **fields):
        name = f"{kind}-{self.number}-{len(self.stored)}"
        self.stored[name] = {"id": name, "object": kind, **fields}
        return self.answer(self.stored[name])

    async def models(self, _request):
        return self.answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def new_files(self, request):
        await request.post()
        return self.add("file")

    async def new_uploads(self, _request):
        return self.add("upload")

    async def new_batches(self, request):
        body = await request.json()
        if body["input_file_id"] not in self.stored:
            return self.missing()
        self.add("file")
        return self.add("batch", output_file_id=[*self.stored][-1], input_file_id="file-elsewhere")

    async def new_conversations(self, _request):
        return self.add("conversation")

    async def all_of(self, request):
        kind = request.path.rpartition("/")[2]
        wanted = {"files": "file", "batches": "batch"}.get(kind, "conversation")
        found = [one for one in self.stored.values() if one["object"] == wanted]
        return self.answer({"object": "list", "data": found})

    async def one(self, request):
        await request.read()
        found = self.stored.get(request.match_info["id"])
        return self.missing() if found is None else self.answer(found)

    async def respond(self, request):
        body = await request.json()
        conversation = body.get("conversation")
        if isinstance(conversation, dict):
            conversation = conversation["id"]
        if conversation not in self.stored:
            return self.missing()
        said = {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}
        return self.answer({"id": "resp", "object": "response", "model": "m", "output": [said]})


async def engines(gateway, shape, **bodies):
    """Start engines behind a picker and an Envoy; return Envoy's URL."""
    started = [await gateway.enter(Engine(at)) for at in range(4)]
    gateway.members(*((engine.address, "m") for engine in started))
    await gateway.picker(bodies=bodies)
    return (await gateway.envoy(shape, trust_gateway_headers=True)).url()


async def uploaded(http, url, text="{}", **headers):
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", text.encode(), filename="requests.jsonl")
    async with http.post(f"{url}/v1/files", data=form, headers=headers) as answer:
        assert answer.status == 200, await answer.read()
        return (await answer.json())["id"], answer.headers["x-engine"]


async def found(http, method, url, **options):
    async with http.request(method, url, **options) as answer:
        return answer.status, answer.headers.get("x-engine"), await answer.read()


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_conversations_go_to_the_engine_that_stores_them(gateway, http, shape):
    url = await engines(gateway, shape)
    homes = {}
    for _ in range(12):
        async with http.post(f"{url}/v1/conversations", json={"metadata": {}}) as answer:
            homes[(await answer.json())["id"]] = answer.headers["x-engine"]
    assert len(set(homes.values())) > 1, "conversations are spread"
    for name, home in homes.items():
        for path in (f"/{name}", f"/{name}/items?limit=2"):
            assert (await found(http, "GET", f"{url}/v1/conversations{path}"))[:2] == (
                200,
                home,
            )
        assert (await found(http, "POST", f"{url}/v1/conversations/{name}", json={}))[1] == home
        for conversation in (name, {"id": name}):
            body = {"model": "m", "input": "and then?", "conversation": conversation}
            got = await found(http, "POST", f"{url}/v1/responses", json=body)
            assert got[:2] == (200, home)


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_files_and_batches_of_a_tenant_are_stored_at_one_engine(gateway, http, shape):
    url = await engines(gateway, shape)
    homes = {}
    for tenant in map(str, range(12)):
        of = {"x-gateway-inference-fairness-id": tenant}
        files = [await uploaded(http, url, **of) for _ in range(3)]
        [homes[tenant]] = {home for _, home in files}
        name = files[-1][0]
        for path in (name, f"{name}/content"):
            got = await found(http, "GET", f"{url}/v1/files/{path}", headers=of)
            assert got[:2] == (200, homes[tenant])
        batch = {"input_file_id": name, "endpoint": "/v1/chat/completions"}
        async with http.post(f"{url}/v1/batches", json=batch, headers=of) as answer:
            assert (answer.status, answer.headers["x-engine"]) == (200, homes[tenant])
            made = await answer.json()
        for path in (f"batches/{made['id']}", f"files/{made['output_file_id']}/content"):
            got = await found(http, "GET", f"{url}/v1/{path}", headers=of)
            assert got[:2] == (200, homes[tenant])
        listed = await found(http, "GET", f"{url}/v1/files", headers=of)
        assert name.encode() in listed[2]
    assert len(set(homes.values())) > 1, "tenants are spread"
