"""Spans sent to a real OTLP receiver, even if it is down or slow, or refuses them."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from test_gateway import chat
from watching import ask, settle, watched_picker

from laar.errors import SettingError
from laar.server.runner import Runner
from laar.settings import load
from laar.telemetry import tracing
from support import eventually, free_port
from support.clients import post
from support.collector import Collector, attributes

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{'1' * 32}-{PARENT}-00"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "traces.md"


@pytest.fixture
async def collector():
    async with Collector() as started:
        yield started


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give the last records time to be sent on a busy machine."""
    monkeypatch.setattr(tracing, "LAST_S", 60.0)


@pytest.fixture
def quick(monkeypatch):
    """Send a batch every 20 ms."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


def asked(runner, count):
    """Decide and settle some traced requests; return the decisions."""
    makes = runner.picker.observability.spans
    traces = [makes.join((), SAMPLED, "") if makes else None for _ in range(count)]
    decisions = [ask(runner, trace=trace) for trace in traces]
    for decision in decisions:
        settle(runner, decision)
    return decisions


# -- behind a real Envoy -----------------------------------------------------------------------


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_sampled_request_is_a_span_in_its_clients_trace(gateway, http, collector, shape):
    upstreams = [await gateway.upstream() for _ in range(6)]
    gateway.members(*((u.address, f"m{n}") for n, u in enumerate(upstreams)))
    await gateway.picker(
        otlp={"traces": collector.url("traces")},
        decisions={"log": str(gateway.directory / "decisions.jsonl")},
    )
    envoy = await gateway.envoy(shape)
    secret = chat(text="the client's own words")
    for headers in ({}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}):
        assert (await post(http, envoy, secret, **headers)).status == 200
    answer = await post(http, envoy, secret, traceparent=SAMPLED, tracestate="a=b")
    decision_id = answer.headers["x-laar-decision-id"]
    url = gateway.url("admin", f"/decisions/{decision_id}")
    async with http.get(url) as found:
        shown = await found.json()
    await gateway.stop_picker()  # sends the waiting spans
    await envoy.stop()  # flushes its log

    [span] = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert (span.name, span.trace_state) == ("laar.decision", "a=b")
    assert span.start_time_unix_nano <= span.end_time_unix_nano
    told = attributes(span)
    assert told["laar.decision.id"] == decision_id
    assert told["laar.decision.endpoint"] == answer.headers["x-laar-endpoint"]
    assert told["laar.decision.reason"] == answer.headers["x-laar-reason"]
    assert told["gen_ai.request.model"] == "auto"
    assert told["gen_ai.response.model"] == answer.headers["x-laar-model"]
    assert told["http.response.status_code"] == 200
    chosen = shown["candidates"][0]
    for term in ("cost_s", "latency_s", "rtt_s", "prefill_s", "queue_s"):
        assert told[f"laar.chosen.{term}"] == chosen[term]

    lines = (gateway.directory / "decisions.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    assert (line["id"], line["trace_id"]) == (decision_id, TRACE)

    access = [json.loads(one) for one in re.findall(r"^\{.*\}$", envoy.log_tail(), re.MULTILINE)]
    [entry] = [entry for entry in access if entry["decision_id"] == decision_id]
    assert entry["traceparent"] == SAMPLED
    everything = [*map(str, collector.spans), *lines]
    assert not any("own words" in one for one in everything)


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_decision_joins_the_span_of_an_envoy_that_traces(gateway, http, collector, shape):
    tracing, cluster = (
        yaml.safe_load(text.replace("4318", str(collector.port)))
        for text in re.findall(r"```yml title=\"\w+\"\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    )

    def trace_too(bootstrap):
        listener = bootstrap["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager.update(tracing)
        bootstrap["static_resources"]["clusters"].append(cluster)
        flush = {"tracing.opentelemetry.flush_interval_ms": 100}
        bootstrap["layered_runtime"]["layers"].append({"name": "flush", "static_layer": flush})

    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(otlp={"traces": collector.url("traces")})
    envoy = await gateway.envoy(shape, trace_too)
    for headers in ({"traceparent": UNSAMPLED}, {"traceparent": SAMPLED}):
        assert (await post(http, envoy, chat(), **headers)).status == 200
    await gateway.stop_picker()
    await eventually(lambda: len(collector.of("envoy")) == 2, what="Envoy's spans")
    [decision] = collector.of("laar")
    by_id = {span.span_id: span for span in collector.of("envoy")}
    call = by_id[decision.parent_span_id]
    request = by_id[call.parent_span_id]
    assert "ExternalProcessor" in call.name
    assert request.parent_span_id.hex() == PARENT
    assert {span.trace_id.hex() for span in (decision, call, request)} == {TRACE}
    assert decision.kind == decision.SPAN_KIND_SERVER


# -- records and spans -------------------------------------------------------------------------


async def test_a_refused_request_is_a_span_with_an_error(gateway, http, collector):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(otlp={"traces": collector.url("traces")})
    envoy = await gateway.envoy()
    answer = await post(http, envoy, chat("unheard-of"), traceparent=SAMPLED)
    assert answer.status == 404
    await gateway.stop_picker()
    [span] = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == answer.headers["x-laar-reason"]
    assert attributes(span)["gen_ai.request.model"] == "unheard-of"


async def test_the_environment_sets_the_collector_and_the_service(
    tmp_path, collector, http, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret,x-scope=team:a")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=laar-0,note=a%20b,nonsense")
    async with watched_picker(tmp_path, otlp={"traces": "environment"}) as (runner, url):
        asked(runner, 1)
        async with http.get(f"{url}/config") as answer:
            assert "s3cret" not in await answer.text()
    assert len(collector.spans) == 1
    [resource] = collector.resources
    assert (resource["service.name"], resource["k8s.pod.name"]) == ("laar", "laar-0")
    assert resource["note"] == "a b"
    assert resource["service.version"]
    for headers in collector.headers:
        assert (headers["authorization"], headers["x-scope"]) == ("Bearer s3cret", "team:a")


# -- trouble -----------------------------------------------------------------------------------


def logged(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("opentelemetry")]


async def test_a_collector_that_is_down_is_logged_and_gets_its_spans_later(tmp_path, quick, caplog):
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1/traces"
    async with watched_picker(tmp_path, otlp={"traces": url}) as (runner, _):
        asked(runner, 3)
        await eventually(lambda: bool(logged(caplog)), what="an attempt")
        async with Collector(port) as late:
            await eventually(lambda: len(late.spans) == 3, what="the spans")


async def test_a_hanging_collector_does_not_delay_the_exit(tmp_path, collector, quick, monkeypatch):
    monkeypatch.setattr(tracing, "LAST_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    collector.hangs = True
    async with asyncio.timeout(20):
        async with watched_picker(tmp_path, otlp={"traces": collector.url("traces")}) as (
            runner,
            _,
        ):
            asked(runner, 3)
            await eventually(lambda: collector.requests == 1, what="an attempt")
    assert not collector.spans


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 500])
async def test_refused_spans_are_logged_and_not_resent(tmp_path, collector, quick, status, caplog):
    collector.status = status
    async with watched_picker(tmp_path, otlp={"traces": collector.url("traces")}) as (runner, _):
        asked(runner, 1)
        told = f"code: {status}"  # an exporter of an earlier test may log, too
        await eventually(lambda: any(told in line for line in logged(caplog)), what="the line")
        assert collector.requests == 1


def starting(directory, **section):
    path = directory / "laar.yaml"
    endpoint = {"address": "10.9.0.1:80", "model": "m"}
    path.write_text(yaml.safe_dump({"endpoints": [endpoint], "otlp": section}))
    return Runner(load(path).settings, seed=1)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:4318", "whole URL"),
        ("http://127.0.0.1:4318", "whole URL"),
        ("grpc://127.0.0.1:4317/", "whole URL"),
        ("http://me:secret@host/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://:secret@host/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("https://host/v1/traces?key=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_an_invalid_url_is_reported(tmp_path, url, why):
    with pytest.raises(SettingError, match=why):
        starting(tmp_path, traces=url)


def test_without_the_extra_startup_reports_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "laar.telemetry.tracing", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[otel\]'"):
        starting(tmp_path, traces="http://h/v1/traces")
    starting(tmp_path)  # without traces the extra is not needed
