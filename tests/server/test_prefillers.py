"""Disaggregated prefill and pulls with a real Envoy: headers name the other endpoint."""

import asyncio
from io import BytesIO

import orjson
import pytest

from laar.fleet.membership import PULL_LABEL, ROLE_LABEL
from support import Answer, RecordingUpstream, eventually

pytestmark = pytest.mark.envoy

PREFILLER = "x-prefiller-host-port"
SOURCE = "x-kv-cache-source-host-port"


def chat(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def write(gateway, **roles):
    """Write the endpoints file; `roles` maps an address to its role."""
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


@pytest.mark.parametrize("shape", ["sidecar", "standalone", "full-duplex"])
async def test_the_sidecar_gets_the_prefiller_from_the_picker_and_never_from_a_client(
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


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_retry_by_envoy_names_the_same_prefiller(gateway, http, shape):
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


class Sidecar(RecordingUpstream):
    """A sidecar that passes on its prefiller's error, like many releases of llm-d's sidecar."""

    async def _handle(self, request):
        self.default_answer = Answer(status=502 if PREFILLER in request.headers else 200)
        return await super()._handle(request)


async def test_no_request_of_a_client_is_the_trial_of_a_failed_prefiller(
    gateway, http, monkeypatch
):
    d, e = [await gateway.enter(Sidecar()) for _ in range(2)]
    p = await gateway.upstream()
    p.default_answer = Answer(status=503)
    write(gateway, **{p.address: "prefill", d.address: "decode", e.address: "decode"})
    monkeypatch.setattr("laar.health.breaker.FIRST_TRIAL_S", 0.2)
    # Probes are rare, as one would also end the trial.
    readings = {"scrape_interval_s": 0.1, "probe_interval_s": 60}
    await gateway.picker(routing={"apart": "always"}, readings=readings)
    url = (await gateway.envoy()).url()
    statuses = []
    for n in range(20):
        statuses.append((await ask(http, url, chat(f"hello {n}"))).status)
        await asyncio.sleep(0.1)
    assert statuses[0] == 502
    assert statuses[10:] == [200] * 10


class Fetching(RecordingUpstream):
    """Decodes, and fails where it has to fetch from one prefiller."""

    bad = ""

    async def _handle(self, request):
        fails = self.bad and request.headers.get(PREFILLER) == self.bad
        self.default_answer = Answer(status=500 if fails else 200)
        return await super()._handle(request)


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_a_prefiller_whose_transfers_fail_is_left_out_and_named(gateway, http, figure, shape):
    decoders = [await gateway.enter(Fetching()) for _ in range(3)]
    bad, good = await gateway.upstream(), await gateway.upstream()
    roles = {bad.address: "prefill", good.address: "prefill"}
    write(gateway, **roles, **{each.address: "decode" for each in decoders})
    await gateway.picker(routing={"apart": "always"})
    url = (await gateway.envoy(shape)).url()
    for each in decoders:
        each.bad = bad.address
    name, lost = f"suspect prefiller {bad.address}", []

    async def is_named():
        lost.append((await ask(http, url, chat(f"{len(lost)} hello"))).status != 200)
        async with http.get(gateway.url("admin", "/fleet")) as shown:
            return name in (await shown.json())["problems"]

    await eventually(is_named, what="the problem")
    later = [(await ask(http, url, chat(f"later {n}"))).status != 200 for n in range(100)]
    figure("lost until one of two prefillers was found to fail", sum(lost), "at most 5")
    figure("lost of 100 later", sum(later), "at most 2")
    assert sum(lost) <= 5
    assert sum(later) <= 2
    used = {request.headers.get(PREFILLER) for each in decoders for request in each.asked[-10:]}
    assert good.address in used
    async with http.get(gateway.url("admin", "/metrics")) as page:
        assert 'laar_problems{collector="suspect"} 1' in await page.text()


@pytest.mark.parametrize("shape", ["sidecar", "standalone", "gateway", "full-duplex"])
async def test_a_pull_is_named_to_the_sidecar_explained_and_never_taken_from_a_client(
    gateway, http, shape
):
    engines = [await gateway.upstream() for _ in range(2)]
    document = {
        "endpoints": [
            {"address": e.address, "models": ["m"], "labels": {PULL_LABEL: "true"}} for e in engines
        ]
    }
    gateway.endpoints_file.write_bytes(orjson.dumps(document))
    picker = (await gateway.picker()).picker
    url = (await gateway.envoy(shape)).url()
    foreign = {SOURCE: "10.9.9.9:1"}
    body = chat("a long story " * 4_000)
    holder = (await ask(http, url, body, **foreign)).headers["x-upstream"]
    slot = picker.table.slot(holder)
    for _ in range(400):  # as if it had as many answers in flight
        picker.table.reserve(slot, 100.0, 0.0, answering=True)
    answer = await ask(http, url, body, **foreign)
    [other] = [e for e in engines if e.address != holder]
    assert answer.headers["x-upstream"] == other.address
    told = [request.headers.getall(SOURCE, []) for e in engines for request in e.asked]
    assert sorted(told) == [[], [holder]]
    decision_id = answer.headers["x-laar-decision-id"]
    async with http.get(gateway.url("admin", f"/decisions/{decision_id}")) as shown:
        record = await shown.json()
    assert record["pulled_from"] == holder
    assert f"tokens of the prompt from {holder}" in record["sentence"]
    async with http.get(gateway.url("admin", "/metrics")) as page:
        assert 'laar_kv_pulls_total{model="m"} 1' in await page.text()
