"""Prefill and decode apart, behind a real Envoy: what the sidecar of an endpoint is told."""

from io import BytesIO

import orjson
import pytest

from laar.core.endpoints import ROLE_LABEL
from support import Answer

pytestmark = pytest.mark.envoy

PREFILLER = "x-prefiller-host-port"


def chat(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def write(gateway, **roles):
    """Writes the endpoints file: an upstream for each role's name."""
    document = {
        "endpoints": [
            {"address": address, "models": ["m"], "labels": {ROLE_LABEL: role}}
            for address, role in roles.items()
        ]
    }
    gateway.endpoints_file.write_bytes(orjson.dumps(document))  # JSON is YAML


async def ask(http, url, body, path="/v1/chat/completions", **headers):
    headers = {"content-type": "application/json", **headers}
    async with http.post(url + path, data=BytesIO(orjson.dumps(body)), headers=headers) as answer:
        await answer.read()
        return answer


@pytest.mark.parametrize("shape", ["sidecar", "standalone", "gateway"])
async def test_the_sidecar_is_told_who_reads_the_prompt_and_a_client_is_not_believed(
    gateway, http, shape
):
    p, d = await gateway.upstream(), await gateway.upstream()
    write(gateway, **{p.address: "prefill", d.address: "decode"})
    await gateway.picker(routing={"apart": "threshold", "apart_tokens": 100})
    url = (await gateway.envoy(shape)).url()
    bodies = [chat(f"{n}. {'a long story ' * 100 * (n % 2)}") for n in range(4)]
    for n, body in enumerate(bodies):
        headers = {PREFILLER: "10.9.9.9:1"} if n < 2 else {}
        answer = await ask(http, url, body, **headers)
        assert answer.headers["x-upstream"] == d.address
    told = [request.headers.getall(PREFILLER, []) for request in d.asked]
    assert told == [[], [p.address], [], [p.address]]
    assert [orjson.loads(request.body) for request in d.asked] == bodies
    assert not p.asked


async def test_a_client_has_no_say_where_no_endpoint_has_a_role(gateway, http):
    d = await gateway.upstream()
    gateway.members((d.address, "m"))
    await gateway.picker()
    url = (await gateway.envoy("gateway", change=let_clients_name_prefillers)).url()
    await ask(http, url, chat("hello"), **{PREFILLER: "10.9.9.9:1"})
    assert PREFILLER not in d.asked[0].headers


def let_clients_name_prefillers(bootstrap):
    """As in a gateway of others, which does not take the header off."""
    listener = bootstrap["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["early_header_mutation_extensions"]


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_a_retry_of_envoys_names_the_same_prefiller(gateway, http, shape):
    p, d, e = [await gateway.upstream() for _ in range(3)]
    write(gateway, **{p.address: "prefill", d.address: "decode", e.address: "decode"})
    await gateway.picker(routing={"apart": "always"})
    url = (await gateway.envoy(shape)).url()
    for upstream in (d, e):
        upstream.default_answer = Answer(status=503)
    assert (await ask(http, url, chat("hello"))).status == 503
    assert d.asked
    assert e.asked
    assert {r.headers[PREFILLER] for u in (d, e) for r in u.asked} == {p.address}
    assert not p.asked
