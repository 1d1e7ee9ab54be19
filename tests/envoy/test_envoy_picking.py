"""The rendered bootstraps, tested with a real Envoy and the no-op picker."""

from __future__ import annotations

import asyncio
import re
from io import BytesIO
from typing import Any

import aiohttp
import orjson
import pytest
from bench.noop_picker import NoopPicker, start
from yarl import URL

from laar.envoy.options import BootstrapOptions
from laar.protocol.headers import header_of
from support import Answer, eventually, free_port

pytestmark = pytest.mark.envoy

SHAPES = ["sidecar", "standalone", "full-duplex"]
BODY_MODES = ["sidecar", "gateway", "full-duplex"]  # one shape for each body mode
BODY = orjson.dumps({"model": "auto", "prompt": "hello"})
SERVED = "x-gateway-destination-endpoint-served"


async def post(http: aiohttp.ClientSession, url: str, body: bytes = BODY, **kwargs: Any) -> Any:
    async with http.post(f"{url}/v1/completions", data=BytesIO(body), **kwargs) as response:
        await response.read()
        return response


async def picked(fleet: Any, http: aiohttp.ClientSession, envoy: Any) -> bool:
    """Return whether a request now reaches the picker."""
    before = len(fleet.seen)
    await post(http, envoy.url())
    return len(fleet.seen) > before


def served(fleet: Any) -> list[str]:
    """Return the endpoints that Envoy reported to the picker as having served."""
    return [
        message.metadata_context.filter_metadata["envoy.lb"].fields[SERVED].string_value.decode()
        for message in fleet.seen
        if message.WhichOneof("request") == "response_headers"
    ]


def http_filters(bootstrap: Any) -> Any:
    return connection_manager(bootstrap)["http_filters"]


def connection_manager(bootstrap: Any) -> Any:
    listener = bootstrap["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_picked_endpoint_gets_every_request_unchanged(fleet, http, shape):
    a, b = await fleet.picked(2)
    envoy = await fleet.envoy(shape)
    for _ in range(8):
        response = await post(http, envoy.url(), headers={"x-request-id": "mine"})
        assert response.status == 200
        assert response.headers["x-upstream"] == b.address
        assert response.headers["x-request-id"] == "mine"
    assert not a.requests
    assert {request.body for request in b.requests} == {BODY}
    assert b.requests[0].headers["x-request-id"] == "mine"


@pytest.mark.parametrize("shape", BODY_MODES)
async def test_after_a_dead_first_choice_the_second_one_serves_and_is_reported(fleet, http, shape):
    a, b, c = await fleet.upstreams(3)
    dead = f"127.0.0.1:{free_port()}"
    fleet.members([a.address, b.address, c.address, dead])
    await fleet.picker(f"{dead},{b.address}")
    envoy = await fleet.envoy(shape)
    for _ in range(8):
        assert (await post(http, envoy.url())).headers["x-upstream"] == b.address
    assert served(fleet) == [b.address] * 8


@pytest.mark.parametrize("shape", BODY_MODES)
async def test_endpoints_that_are_not_listed_get_no_requests(fleet, http, shape):
    a, outside = await fleet.upstreams(2)
    dead = f"127.0.0.1:{free_port()}"
    fleet.members([a.address, dead])
    envoy = await fleet.envoy(shape)
    for named in (dead, outside.address):  # a dead endpoint, and one that Envoy does not know
        picker = await fleet.picker(named)
        await eventually(lambda: picked(fleet, http, envoy), what="Envoy finding the picker")
        before = len(a.requests)
        for _ in range(8):
            async with http.post(f"{envoy.url()}/v1/completions", data=BytesIO(BODY)) as response:
                assert response.status == 503
                assert response.headers["retry-after"] == "1"
                assert (await response.json())["error"]["code"] == "no-answer"
        assert len(a.requests) == before
        await picker.stop(None)
    assert not outside.requests


async def test_ipv6_endpoints_are_picked_by_their_bracketed_address(fleet, http):
    try:
        a, b = await fleet.upstreams(2, host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    fleet.members([a.address, b.address])
    await fleet.picker(b.address)
    envoy = await fleet.envoy("sidecar")
    for _ in range(5):
        assert (await post(http, envoy.url())).headers["x-upstream"] == b.address


@pytest.mark.parametrize("shape", BODY_MODES)
async def test_without_a_picker_envoy_spreads_the_requests_and_recovers(fleet, http, shape):
    a, b = await fleet.upstreams(2)
    fleet.members([a.address, b.address])
    envoy = await fleet.envoy(shape)
    answers = [(await post(http, envoy.url())).headers for _ in range(20)]
    assert {headers["x-upstream"] for headers in answers} == {a.address, b.address}
    if shape != "full-duplex":  # not laar's Envoy
        assert {headers["x-laar-reason"] for headers in answers} == {"failed-open"}

    await fleet.picker(b.address)
    await eventually(lambda: picked(fleet, http, envoy), what="Envoy finding the picker")
    answer = await post(http, envoy.url())
    assert answer.headers["x-upstream"] == b.address
    assert "x-laar-reason" not in answer.headers


async def test_while_one_of_several_pickers_is_gone_the_others_decide(fleet, http):
    a, b = await fleet.upstreams(2)
    fleet.members([a.address, b.address])
    await fleet.picker(b.address)
    envoy = await fleet.envoy("standalone", more_pickers=f",127.0.0.1:{free_port()}")
    await eventually(lambda: picked(fleet, http, envoy), what="Envoy finding the picker")
    for _ in range(10):
        assert (await post(http, envoy.url())).headers["x-upstream"] == b.address


@pytest.mark.parametrize("shape", BODY_MODES)
async def test_failing_closed_answers_503_without_a_picker(fleet, http, shape):
    (a,) = await fleet.upstreams(1)
    fleet.members([a.address])
    envoy = await fleet.envoy(shape, BootstrapOptions(fail_open=False))
    async with http.post(f"{envoy.url()}/v1/completions", data=BytesIO(BODY)) as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert response.headers["x-laar-reason"] == "no-picker"
        assert response.content_type == "application/json"
        answer = await response.json()
        assert answer["error"]["code"] == "no-picker"
        assert answer["request_id"] == response.headers["request-id"] != ""
    assert not a.requests


async def test_membership_follows_a_rename(fleet, http):
    a, b = await fleet.upstreams(2)
    fleet.members([a.address])
    envoy = await fleet.envoy("sidecar")
    assert (await post(http, envoy.url())).headers["x-upstream"] == a.address
    fleet.members([b.address])

    async def moved() -> bool:
        return (await post(http, envoy.url())).headers["x-upstream"] == b.address

    await eventually(moved, what="Envoy following the endpoints file")
    count = len(a.requests)
    assert (await post(http, envoy.url())).headers["x-upstream"] == b.address
    assert len(a.requests) == count


async def test_a_body_over_the_limit_gets_413_and_one_under_it_passes(fleet, http):
    (a,) = await fleet.picked(1)
    limit = 1024 * 1024
    envoy = await fleet.envoy("standalone", BootstrapOptions(max_body_bytes=limit))
    under = orjson.dumps("x" * (limit - 1000))
    assert (await post(http, envoy.url(), under)).status == 200
    over = orjson.dumps("x" * (limit + 1000))
    assert (await post(http, envoy.url(), over)).status == 413
    assert [request.body for request in a.requests] == [under]


async def test_a_long_body_passes_with_as_many_headers_as_a_short_one(fleet, http):
    (a,) = await fleet.picked(1)
    envoy = await fleet.envoy("standalone")
    for count, chars in ((80, 1), (92, 1), (58, 1000)):
        headers = {f"x-header-{n}": "v" * chars for n in range(count)}
        a.default_answer = Answer(headers=headers)
        for body in (BODY, orjson.dumps("x" * 150_000)):
            assert (await post(http, envoy.url(), body, headers=headers)).status == 200


@pytest.mark.parametrize("shape", BODY_MODES)
async def test_a_subset_hint_in_the_metadata_reaches_the_picker(fleet, http, shape):
    (a,) = await fleet.picked(1)
    hint = {"x-gateway-destination-endpoint-subset": [a.address]}

    def add_hint(bootstrap: Any) -> None:
        url = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"
        metadata = [{"metadata_namespace": "envoy.lb.subset_hint", "value": hint}]
        http_filters(bootstrap).insert(
            0, {"name": "hint", "typed_config": {"@type": url, "metadata": metadata}}
        )

    envoy = await fleet.envoy(shape, edit=add_hint)
    await post(http, envoy.url())
    received = fleet.seen[0].metadata_context.filter_metadata["envoy.lb.subset_hint"]
    values = received.fields["x-gateway-destination-endpoint-subset"].list_value.values
    assert [value.string_value.decode() for value in values] == [a.address]


def phases(fleet: Any) -> list[str]:
    return [message.WhichOneof("request") for message in fleet.seen]


@pytest.mark.parametrize("tenant_header", ["x-team", "X-Team"])
async def test_needed_headers_come_with_the_body_and_are_not_forwarded(fleet, http, tenant_header):
    (a,) = await fleet.picked(1)
    envoy = await fleet.envoy("sidecar", BootstrapOptions(tenant_header=tenant_header))
    sent = {"x-laar-tried-models": "a,b", "x-team": "blue", "x-request-id": "mine"}
    await post(http, envoy.url(), headers=sent)
    (attributes,) = fleet.seen[0].attributes.values()
    fields = attributes.fields.items()
    read = {
        header: value.string_value.decode()
        for name, value in fields
        if (header := header_of(name)) != name
    }
    assert read == {":path": "/v1/completions", **sent}
    assert "x-laar-tried-models" not in a.requests[0].headers
    assert a.requests[0].headers["x-team"] == "blue"


@pytest.mark.parametrize("shape", SHAPES)
async def test_requests_refused_by_envoy_get_an_answer(fleet, shape):
    fleet.members([])
    await fleet.picker("127.0.0.1:1")
    envoy = await fleet.envoy(shape)
    answered = []
    twice = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n"
    for request_head, status, reason in (
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x-many: 1\r\n" * 200, 431, "headers-too-large"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"1" * 70_000, 431, "headers-too-large"),
        (twice, 400, "bad-request"),
        (b"CONNECT api.example:443 HTTP/1.1\r\nhost: api.example:443\r\n", 404, "bad-request"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(envoy.url()).port)
        async with asyncio.timeout(10):
            writer.write(request_head + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"}\n")
            writer.close()
            await writer.wait_closed()
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert f"x-laar-reason: {reason}".encode() in head
        answer = orjson.loads(body)
        assert answer["error"]["code"] == reason
        ids = re.findall(rb"(?m)^(?:x-)?request-id: (\S+)\r$", head)
        assert {*ids} == {answer["request_id"].encode()}  # by which the access log finds it
        answered.append(answer["request_id"])
    assert fleet.seen == []
    await envoy.stop()  # flushes the log
    lines = map(orjson.loads, re.findall(r"^\{.*\}$", envoy.log_tail(), re.MULTILINE))
    assert [line["answered_id"] for line in lines] == answered
    assert len({*answered}) == len(answered)


async def test_the_access_log_has_pick_and_outcome_as_json(fleet, http):
    (a,) = await fleet.picked(1)
    envoy = await fleet.envoy("standalone")
    a.script(Answer(headers={"x-laar-decision-id": "d1", "x-laar-model": "m1"}))
    await post(http, f"{envoy.url()}", params={"prompt": "secret"})
    await envoy.stop()  # flushes the log
    lines = re.findall(r"^\{.*\}$", envoy.log_tail(), re.MULTILINE)
    entry = orjson.loads(lines[0])
    assert len(lines) == 1
    assert (entry["picked"], entry["served"]) == (a.address, a.address)
    assert (entry["decision_id"], entry["model"], entry["endpoint"]) == ("d1", "m1", None)
    assert (entry["status"], entry["request_bytes"], entry["attempts"]) == (200, len(BODY), 1)
    assert entry["first_byte_ms"] <= entry["duration_ms"]
    assert "secret" not in lines[0]


async def test_only_the_sidecar_trusts_the_forwarded_address_of_its_clients(fleet, http):
    (a,) = await fleet.upstreams(1)
    fleet.members([a.address])
    for shape in SHAPES:
        envoy = await fleet.envoy(shape)
        await post(http, envoy.url(), headers={"x-forwarded-for": "203.0.113.7"})
        await envoy.stop()
    forwarded = [request.headers["x-forwarded-for"] for request in a.requests]
    assert forwarded[0] == "203.0.113.7"
    assert all(re.fullmatch(r"203\.0\.113\.7,[0-9.]+", value) for value in forwarded[1:])


async def test_a_picker_that_fails_on_a_body_costs_no_request(fleet, http):
    (a,) = await fleet.upstreams(1)
    fleet.members([a.address])

    def break_over_body(message: Any) -> None:
        fleet.seen.append(message)
        if message.HasField("request_body"):
            raise RuntimeError("broken")

    server = await start(NoopPicker(a.address, observe=break_over_body), fleet.picker_port)
    try:
        envoy = await fleet.envoy("sidecar")
        assert (await post(http, envoy.url())).status == 200
    finally:
        await server.stop(None)
    assert phases(fleet) == ["request_body"]
    assert a.requests[0].body == BODY


class SilentPicker(NoopPicker):
    async def process(self, _: object, context: Any) -> None:
        await asyncio.Event().wait()


async def test_envoy_gives_up_on_a_silent_picker_after_the_message_timeout(fleet, http):
    (a,) = await fleet.upstreams(1)
    fleet.members([a.address])

    def hurry(bootstrap: Any) -> None:
        http_filters(bootstrap)[1]["typed_config"]["message_timeout"] = "0.1s"

    server = await start(SilentPicker(a.address), fleet.picker_port)
    try:
        envoy = await fleet.envoy("sidecar", edit=hurry)
        assert (await post(http, envoy.url())).status == 200
    finally:
        await server.stop(None)
