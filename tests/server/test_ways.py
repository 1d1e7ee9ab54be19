"""Engines reached over HTTPS, under a base path or with their own key, through a real Envoy."""

from __future__ import annotations

import json
from functools import partial

import httpx
import pytest
import yaml
from aiohttp import web

from support import eventually
from support.authority import Authority
from support.served import ServedEngine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SHAPES = ("sidecar", "standalone", "gateway", "full-duplex")


class Engine(ServedEngine):
    """Serves clients that have its key under a base path, and records all requests."""

    def __init__(self, base="/v1", *, key="", tls=None):
        self.base, self.key, self.pair = base, key, tls
        self.seen = []
        self.status, self.virtual = 200, ""

    async def _handle(self, request):
        await request.read()
        self.seen.append(request)
        if self.virtual and request.headers["host"].partition(":")[0] != self.virtual:
            return web.Response(status=404)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        root = self.base.removesuffix("/v1")
        if request.path == f"{root}/metrics":
            return web.Response(text="vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n")
        if request.path == f"{self.base}/models":
            return web.json_response({"object": "list", "data": [{"id": "m"}]})
        if not request.path.startswith(f"{self.base}/"):
            return web.Response(status=404)
        if self.status != 200:
            return web.Response(status=self.status)
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}}
        return web.json_response({"model": "m", "choices": [choice]})

    @property
    def sent(self):
        """Return the requests that clients sent."""
        own = ("laar-names", "laar-templates", "laar-tokens", "laar-trial")
        agents = ((each, each.headers.get("user-agent")) for each in self.seen)
        return [each for each, agent in agents if each.method == "POST" and agent not in own]

    @property
    def asked(self):
        """Return the paths of these requests, with queries."""
        return [each.path_qs for each in self.sent]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


def members(gateway, *entries):
    """Write the endpoints file."""
    temporary = gateway.endpoints_file.with_suffix(".new")
    temporary.write_text(
        yaml.safe_dump({"endpoints": [{"model": "m", **each} for each in entries]})
    )
    temporary.replace(gateway.endpoints_file)


def key_file(directory, key):
    path = directory / f"key-{key}"
    path.write_text(f"{key}\n")
    return str(path)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_engine_with_tls_and_a_base_path_and_a_key_answers_in_every_shape(
    gateway, authority, tmp_path, shape
):
    pair = authority.issue("engine", host="engine.example")
    engine = await gateway.enter(Engine("/openai/v1", key="s3cret", tls=pair))
    members(
        gateway,
        {
            "address": f"https://{engine.address}/openai/v1",
            "ca_file": str(authority.path),
            "sni": "engine.example",
            "key_file": key_file(tmp_path, "s3cret"),
        },
    )
    runner = await gateway.picker()
    running = await gateway.envoy(shape, endpoint_cas=(str(authority.path),))
    client = {"authorization": "Bearer client", "x-api-key": "client", "api-key": "client"}
    async with httpx.AsyncClient(base_url=running.url(), headers=client, timeout=20) as http:
        answer = await http.post("/v1/chat/completions?x=1", json=CHAT)
        assert (answer.status_code, answer.headers["x-laar-model"]) == (200, "m"), answer.text
        # A GET is decided at its headers, by a different kind of message to the picker.
        read = await http.get("/v1/anything?y=2")
        assert read.status_code == 200
    assert engine.asked == ["/openai/v1/chat/completions?x=1"]
    [request] = [each for each in engine.seen if each.path_qs == engine.asked[0]]
    assert request.headers["host"] == "engine.example"
    assert "client" not in str(request.headers)
    assert any(each.path_qs == "/openai/v1/anything?y=2" for each in engine.seen)
    # The picker's own requests to the engine use the same settings.
    slot = runner.picker.table.slot_counted(engine.address)

    async def is_read():
        paths = {each.path for each in engine.seen}
        return {"/openai/metrics", "/openai/health", "/openai/v1/models"} <= paths

    await eventually(is_read, timeout_s=20, what="the visits of the picker")
    assert slot >= 0
    assert {
        (each.headers.get("user-agent") == "laar-probe", each.headers.get("authorization"))
        for each in engine.seen
    } == {(False, "Bearer s3cret"), (True, None)}


async def test_an_engine_certified_by_a_different_ca_gets_no_requests(gateway, authority, tmp_path):
    engine = await gateway.enter(Engine(tls=authority.issue("engine", host="engine.example")))
    entry = {"address": f"https://{engine.address}", "ca_file": str(authority.path)}
    wrong = [
        ({**entry, "sni": "other.example"}, (str(authority.path),)),  # not the engine's name
        ({**entry, "sni": "engine.example"}, (str(Authority(tmp_path, "other").path),)),
        ({**entry, "sni": "engine.example"}, ()),  # the bootstrap lacks the CA
    ]
    for entry, cas in wrong:
        members(gateway, entry)
        await gateway.picker()
        running = await gateway.envoy("sidecar", endpoint_cas=cas)
        async with httpx.AsyncClient(base_url=running.url(), timeout=20) as http:
            answer = await http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 503
        assert engine.asked == []
        await running.stop()
        (gateway.directory / "envoy").rename(gateway.directory / f"envoy-{len(cas)}-{entry['sni']}")


async def test_a_key_is_sent_only_to_its_own_engine(gateway, tmp_path):
    one = await gateway.enter(Engine(key="key-one"))
    other = await gateway.enter(Engine(key="key-other"))
    open_to_all = await gateway.enter(Engine())
    members(
        gateway,
        {"address": one.address, "key_file": key_file(tmp_path, "key-one")},
        {"address": other.address, "key_file": key_file(tmp_path, "key-other")},
        {"address": open_to_all.address},
    )
    await gateway.picker(routing={"policy": "round-robin"})
    running = await gateway.envoy("sidecar")
    headers = {"authorization": "Bearer client"}
    # So that Envoy retries, which must not carry the first engine's key elsewhere.
    one.status = other.status = 503
    async with httpx.AsyncClient(base_url=running.url(), headers=headers, timeout=20) as http:
        for user in range(9):  # distinct, since a body that fails at two engines is refused
            await http.post("/v1/chat/completions", json={**CHAT, "user": f"u{user}"})
    engines = (one, other, open_to_all)
    await eventually(lambda: all(any(s.path == "/health" for s in e.seen) for e in engines))
    for engine, key in ((one, "key-one"), (other, "key-other"), (open_to_all, "client")):
        assert {each.headers["authorization"] for each in engine.sent} == {f"Bearer {key}"}
        # Sent without the key, as LiteLLM's /health calls models.
        probes = [each for each in engine.seen if each.path == "/health"]
        assert probes
        assert not any("authorization" in each.headers for each in probes)


async def test_the_documented_addresses_get_answers(gateway, authority, tmp_path):
    """Try five forms in which users write an engine's address."""
    pair = authority.issue("ip")
    secure = await gateway.enter(Engine(tls=pair))
    below = await gateway.enter(Engine("/openai/v1"))
    keyed = await gateway.enter(Engine(key="k"))
    ca = {"ca_file": str(authority.path)}
    rows = [
        {"address": f"https://{secure.address}", **ca},
        {"address": f"https://{secure.address}/v1/", **ca},
        {"address": f"http://{below.address}/openai/v1"},
        {"address": f"{below.address}/openai/v1"},
        {"address": keyed.address, "key_file": key_file(tmp_path, "k")},
    ]
    members(gateway, rows[0])
    await gateway.picker()
    running = await gateway.envoy("sidecar", endpoint_cas=(str(authority.path),))
    async with httpx.AsyncClient(base_url=running.url(), timeout=20) as http:

        async def answers(engine):
            before = len(engine.asked)
            answer = await http.post("/v1/chat/completions", json=CHAT)
            return answer.status_code == 200 and len(engine.asked) > before

        for row in rows:
            members(gateway, row)
            engine = next(e for e in (secure, below, keyed) if e.address in row["address"])
            await eventually(partial(answers, engine), timeout_s=20, what=json.dumps(row))


FORMS = ("localhost:{}", "http://localhost:{}", "localhost:{}/v1", "http://localhost:{}/openai/v1")


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.parametrize("form", [*FORMS, "127.0.0.1:{} with sni"])
async def test_an_engine_behind_a_virtual_host_is_asked_by_its_name(gateway, figure, shape, form):
    address, _, sni = form.partition(" with ")
    engine = await gateway.enter(Engine("/openai/v1" if "openai" in form else "/v1"))
    engine.virtual = "localhost"
    entry = {"address": address.format(engine.address.rpartition(":")[2])}
    members(gateway, entry | ({"sni": "localhost"} if sni else {}))
    await gateway.picker()
    running = await gateway.envoy(shape)
    async with httpx.AsyncClient(base_url=running.url(), timeout=20) as http:

        async def ask():
            return await http.post("/v1/chat/completions", json=CHAT)

        async def is_decided():
            return "x-laar-decision-id" in (await ask()).headers

        await eventually(is_decided)  # until the name is resolved, Envoy is alone
        answers = [await ask() for _ in range(10)]
    lost = sum(answer.status_code != 200 for answer in answers)
    figure(f"lost of 10 to {form.format('PORT')} behind a virtual host", lost, "0")
    assert lost == 0
    visits = {"/metrics", "/health", "/v1/models"}
    root = engine.base.removesuffix("/v1")
    await eventually(
        lambda: {root + each for each in visits} <= {each.path for each in engine.seen}
    )
    assert {each.headers["host"] for each in engine.seen} == {"localhost"}
