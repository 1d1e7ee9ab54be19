"""`mode: shadow` with a real Envoy: Envoy balances, and the picker only compares."""

from io import BytesIO

import aiohttp
import orjson
import pytest

from laar.server.admin.metrics import metrics_page
from support import eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_in_shadow_mode_envoy_chooses_and_the_picker_compares(gateway, http, shape):
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "small", "m"), (b.address, "large", "m"))
    runner = await gateway.picker(routing={"mode": "shadow"})
    envoy = await gateway.envoy(shape)
    served = {}
    for i in range(24):
        answer = await post(http, envoy, chat())
        assert answer.status == 200
        assert answer.headers["x-laar-mode"] == "shadow"
        assert "x-laar-endpoint" not in answer.headers
        served[answer.headers["x-laar-decision-id"]] = answer.headers["x-upstream"]
        if i == 0:
            at = a if answer.headers["x-upstream"] == a.address else b
            request = next(r for r in at.requests if r.path == "/v1/chat/completions")
            assert "x-gateway-destination-endpoint" not in request.headers
            assert orjson.loads(request.body)["model"] == "m"
    memory = runner.picker.observability.memory

    def all_ended():
        return all(memory.get(id_).end is not None for id_ in served)

    await eventually(all_ended, what="every request's end")
    records = [memory.get(id_) for id_ in served]
    assert {record.decision.id: record.served for record in records} == served
    agreed = sum(record.served == record.decision.address for record in records)
    assert 0 < agreed < 24  # Envoy and the picker agree on some by chance
    assert not runner.picker.table.in_flight.any()
    page = metrics_page(runner.picker).decode()
    assert f'laar_shadow_decisions_total{{agreed="yes"}} {agreed:.1f}' in page
    assert f'laar_shadow_decisions_total{{agreed="no"}} {24 - agreed:.1f}' in page
    assert "laar_moved_total 0.0" in page


@pytest.mark.parametrize("routing", [{"mode": "shadow"}, {"enforce_share": 0.3}])
@pytest.mark.parametrize("shape", SHAPES)
async def test_shadowed_requests_stay_with_their_model(gateway, http, shape, routing):
    one, two = await gateway.upstream(), await gateway.upstream()
    gateway.members((one.address, "org/one"), (two.address, "two"))
    await gateway.picker(routing=routing)
    envoy = await gateway.envoy(shape)
    for upstream, name in [(one, "org/one"), (two, "two")] * 5:
        form = aiohttp.FormData({"model": name, "file": BytesIO(b"x" * 5000)})
        for path, data in (
            ("/v1/chat/completions", BytesIO(chat(model=name))),
            ("/openai/deployments/" + name + "/chat/completions", BytesIO(b'{"messages": []}')),
            ("/v1/audio/transcriptions", form),
        ):
            async with http.post(envoy.url() + path, data=data) as answer:
                assert answer.headers.get("x-upstream") == upstream.address, (path, answer)
    answer = await post(http, envoy, chat(model="nobody"))
    assert answer.status == (200 if answer.headers.get("x-upstream") else 404)


async def test_a_name_that_only_the_picker_can_resolve_is_always_enforced(gateway, http):
    one, two = await gateway.upstream(), await gateway.upstream()
    gateway.members((one.address, "one"), (two.address, "two"))
    await gateway.picker(routing={"enforce_share": 0.0, "aliases": {"best": ["two"]}})
    envoy = await gateway.envoy("standalone")
    for _ in range(8):
        assert (await post(http, envoy, chat(model="best"))).status == 200
    assert {orjson.loads(request.body)["model"] for request in two.asked} == {"two"}
    assert not one.asked
