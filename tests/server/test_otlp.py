"""Spans and log records to a real OTLP receiver; the collector that is down, slow, or says no."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_gateway import chat, post
from watching import PROMPT, ask, settle, watched_picker

from laar.config import load_settings
from laar.core.request import Trace
from laar.errors import SettingError
from laar.server.runner import Runner
from laar.telemetry import otlp
from support import eventually, free_port, metric
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
    """What waits at the end is sent however busy this machine is."""
    monkeypatch.setattr(otlp, "LAST_S", 10.0)


@pytest.fixture
def quick(monkeypatch):
    """Attempts follow each other quickly."""
    monkeypatch.setattr(otlp, "INTERVAL_S", 0.02)
    monkeypatch.setattr(otlp, "MAX_INTERVAL_S", 0.05)


def trace(number=0):
    return Trace(
        trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}", parent_id=PARENT, asked_s=1.0
    )


def asked(runner, count):
    """Some requests that are traced, from beginning to end."""
    decisions = [ask(runner, trace=trace(n)) for n in range(count)]
    for decision in decisions:
        settle(runner, decision)
    return decisions


def records(runner, signal, result):
    return metric(runner, f'laar_otlp_records_total{{result="{result}",signal="{signal}"}}')


# -- behind a real Envoy -----------------------------------------------------------------------


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_a_sampled_request_is_one_span_of_its_clients_trace(gateway, http, collector, shape):
    upstreams = [await gateway.upstream() for _ in range(6)]
    gateway.members(*((u.address, f"m{n}") for n, u in enumerate(upstreams)))
    await gateway.picker(
        otlp={"traces": collector.url("traces"), "logs": collector.url("logs")},
        decisions={"log": str(gateway.directory / "decisions.jsonl")},
    )
    envoy = await gateway.envoy(shape)
    secret = chat(text="the client's own words")
    for headers in ({}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}):
        assert (await post(http, envoy.url(), secret, **headers)).status == 200
    answer = await post(http, envoy.url(), secret, traceparent=SAMPLED, tracestate="a=b")
    decision_id = answer.headers["x-laar-decision-id"]
    url = gateway.url("admin", f"/decisions/{decision_id}")
    async with http.get(url) as found:
        shown = await found.json()
    await gateway.stop_picker()  # which sends what waits
    await envoy.stop()  # which writes its log out

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
    chosen, *others = shown["candidates"]
    for term in ("cost_s", "latency_s", "rtt_s", "prefill_s", "queue_s", "probability"):
        assert told[f"laar.chosen.{term}"] == chosen[term]
        assert told[f"laar.runners_up.{term}"] == [row[term] for row in others[:3]]
    assert told["laar.runners_up.endpoint"] == [row["endpoint"] for row in others[:3]]

    lines = (gateway.directory / "decisions.jsonl").read_text().splitlines()
    assert [record.body.string_value for record in collector.logs] == lines
    line, record = json.loads(lines[-1]), collector.logs[-1]
    assert (line["id"], line["trace_id"]) == (decision_id, TRACE)
    assert attributes(record)["laar.decision.id"] == decision_id
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
    assert [record.trace_id for record in collector.logs[:-1]] == [b""] * 3

    access = [json.loads(one) for one in re.findall(r"^\{.*\}$", envoy.log_tail(), re.MULTILINE)]
    [entry] = [entry for entry in access if entry["decision_id"] == decision_id]
    assert entry["traceparent"] == SAMPLED
    everything = [*map(str, collector.spans), *map(str, collector.logs), *lines]
    assert not any("own words" in one for one in everything)


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
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

    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(otlp={"traces": collector.url("traces")})
    envoy = await gateway.envoy(shape, trace_too)
    for headers in ({"traceparent": UNSAMPLED}, {"traceparent": SAMPLED}):
        assert (await post(http, envoy.url(), chat(), **headers)).status == 200
    await gateway.stop_picker()
    await eventually(lambda: len(collector.of("envoy")) == 2, what="Envoy's spans")
    [decision] = collector.of("laar")
    spans = {span.span_id: span for span in collector.of("envoy")}
    call = spans[decision.parent_span_id]
    request = spans[call.parent_span_id]
    assert "ExternalProcessor" in call.name
    assert request.parent_span_id.hex() == PARENT
    assert {span.trace_id.hex() for span in (decision, call, request)} == {TRACE}
    assert decision.kind == decision.SPAN_KIND_SERVER


# -- what is sent ------------------------------------------------------------------------------


async def test_a_refused_request_is_a_span_with_an_error(gateway, http, collector):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(otlp={"traces": collector.url("traces")})
    envoy = await gateway.envoy()
    answer = await post(http, envoy.url(), chat("unheard-of"), traceparent=SAMPLED)
    assert answer.status == 404
    await gateway.stop_picker()
    [span] = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == answer.headers["x-laar-reason"]
    assert attributes(span)["gen_ai.request.model"] == "unheard-of"


async def test_who_sends_and_what_it_shows_of_itself(tmp_path, collector, http, monkeypatch):
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=laar-0, note=a%20b,service.name=x,nonsense"
    )
    secret = tmp_path / "headers"
    secret.write_text("authorization: Bearer s3cret\n\nx-scope: team:a\n")
    sections = {"traces": collector.url("traces"), "headers_file": str(secret)}
    async with watched_picker(tmp_path, otlp=sections) as (runner, url):
        asked(runner, 1)
        async with http.get(f"{url}/config") as answer:
            assert "s3cret" not in await answer.text()
    [resource] = collector.resources
    assert (resource["service.name"], resource["k8s.pod.name"]) == ("laar", "laar-0")
    assert resource["note"] == "a b"
    assert resource["service.version"]
    [headers] = collector.headers
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer s3cret", "team:a")


async def test_a_decision_that_is_forgotten_before_its_end_is_told_all_the_same(
    tmp_path, collector
):
    file = tmp_path / "decisions.jsonl"
    sections = {
        "decisions": {"remember": 1, "log": str(file)},
        "otlp": {"traces": collector.url("traces")},
    }
    async with watched_picker(tmp_path, **sections) as (runner, _):
        ids = [decision.id for decision in asked(runner, 3)]
    assert [attributes(span)["laar.decision.id"] for span in collector.spans] == ids
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ids


async def test_the_logs_sample_is_the_decision_logs(tmp_path, collector):
    sections = {"decisions": {"log_sample": 0.25}, "otlp": {"logs": collector.url("logs")}}
    async with watched_picker(tmp_path, **sections) as (runner, _):
        asked(runner, 1000)
    assert 180 < len(collector.logs) < 320
    body = json.loads(collector.logs[0].body.string_value)
    assert len(body["candidates"]) == 3
    assert PROMPT.strip() not in str(collector.logs)


# -- trouble -----------------------------------------------------------------------------------


async def test_a_collector_that_is_down_costs_spans_beyond_the_queue_and_nothing_else(
    tmp_path, quick, caplog
):
    port = free_port()
    sections = {"traces": f"http://127.0.0.1:{port}/v1/traces", "max_queued": 5}
    caplog.set_level(logging.INFO)
    async with watched_picker(tmp_path, otlp=sections) as (runner, _):
        decisions = asked(runner, 20)
        await eventually(lambda: "otlp traces" in runner.metrics.problems, what="the problem")
        errors = 'laar_collector_errors_total{collector="otlp"}'
        await eventually(lambda: metric(runner, errors) >= 4, what="further attempts")
        assert records(runner, "traces", "dropped") == 15
        [said] = [r.getMessage() for r in caplog.records if "otlp.traces" in r.getMessage()]
        assert f"http://127.0.0.1:{port}/v1/traces can't be reached (Connection refused)" in said
        async with Collector(port) as late:
            await eventually(lambda: len(late.spans) == 5, what="what was kept")
            await eventually(lambda: not runner.metrics.problems, what="the end of it")
            found = [attributes(span)["laar.decision.id"] for span in late.spans]
            assert found == [decision.id for decision in decisions[:5]]
            asked(runner, 1)
            await eventually(lambda: len(late.spans) == 6, what="a new one")
            await eventually(lambda: records(runner, "traces", "sent") == 6, what="the count")
        assert records(runner, "traces", "dropped") == 15


async def test_a_collector_that_hangs_does_not_hold_up_the_end(
    tmp_path, collector, quick, monkeypatch
):
    monkeypatch.setattr(otlp, "LAST_S", 0.2)
    collector.hangs = True
    sections = {"traces": collector.url("traces"), "timeout_s": 60}
    async with watched_picker(tmp_path, otlp=sections) as (runner, _):
        asked(runner, 3)
        await eventually(lambda: collector.requests == 1, what="an attempt")
        runner.stop()
        sender = runner.watch.exports.senders["traces"]
        await asyncio.wait_for(eventually(lambda: sender.dropped == 3, what="giving up"), 10)


async def test_a_collector_that_is_slow_is_given_up_and_asked_again(tmp_path, collector, quick):
    collector.hangs = True
    sections = {"traces": collector.url("traces"), "timeout_s": 0.1}
    async with watched_picker(tmp_path, otlp=sections) as (runner, _):
        asked(runner, 3)
        await eventually(lambda: collector.requests >= 2, what="a second attempt")
        assert "timed out" in runner.metrics.problems["otlp traces"]
        collector.hangs = False
        await eventually(lambda: len(collector.spans) == 3, what="the spans")
        assert records(runner, "traces", "dropped") == 0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_collector_that_is_full_gets_them_later(tmp_path, collector, quick, status):
    collector.status = status
    async with watched_picker(tmp_path, otlp={"logs": collector.url("logs")}) as (runner, _):
        asked(runner, 3)
        await eventually(lambda: collector.requests >= 2, what="a second attempt")
        assert f"answers {status}" in runner.metrics.problems["otlp logs"]
        collector.status = 200
        await eventually(lambda: records(runner, "logs", "sent") == 3, what="the records")
        assert records(runner, "logs", "dropped") == 0
        assert len(collector.logs) == 3


@pytest.mark.parametrize("status", [302, 400, 401, 404, 500])
async def test_what_a_collector_refuses_is_not_sent_again(tmp_path, collector, quick, status):
    collector.status = status
    async with watched_picker(tmp_path, otlp={"traces": collector.url("traces")}) as (runner, _):
        asked(runner, 3)
        await eventually(lambda: records(runner, "traces", "dropped") == 3, what="the count")
        assert f"answers {status}" in runner.metrics.problems["otlp traces"]
        assert collector.requests == 1


async def test_what_a_collector_takes_in_part_is_counted_in_parts(tmp_path, collector, quick):
    answer = otlp.trace_service.ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    collector.answer = answer.SerializeToString()
    async with watched_picker(tmp_path, otlp={"traces": collector.url("traces")}) as (runner, _):
        asked(runner, 5)
        await eventually(lambda: records(runner, "traces", "sent") == 3, what="the count")
        assert records(runner, "traces", "dropped") == 2
        assert "takes a part only" in runner.metrics.problems["otlp traces"]
        collector.answer = b"thanks, all is well"  # prose is no rejection
        asked(runner, 1)
        await eventually(lambda: records(runner, "traces", "sent") == 4, what="the count")
        assert not runner.metrics.problems


# -- settings ----------------------------------------------------------------------------------


def starting(directory, **section):
    path = directory / "laar.yaml"
    endpoint = {"address": "10.9.0.1:80", "model": "m"}
    path.write_text(yaml.safe_dump({"endpoints": [endpoint], "otlp": section}))
    return Runner(load_settings(path), seed=1)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:4318", "whole URL"),
        ("http://127.0.0.1:4318", "whole URL"),
        ("grpc://127.0.0.1:4317/", "whole URL"),
        ("http://me:secret@host/v1/traces", "otlp.headers_file"),
        ("https://host/v1/traces?key=secret", "otlp.headers_file"),
    ],
)
def test_a_url_that_cannot_be_is_told(tmp_path, url, why):
    with pytest.raises(SettingError, match=why):
        starting(tmp_path, traces=url)


@pytest.mark.parametrize("text", [None, "Bearer x", "authorization:", "a b: c", "x: \x01"])
def test_a_file_of_headers_that_cannot_be_is_told_without_its_secrets(tmp_path, text):
    if text is not None:
        (tmp_path / "headers").write_text(f"ok: secret\n{text}\n")
    with pytest.raises(SettingError, match=r"otlp.headers_file: .*headers") as told:
        starting(tmp_path, traces="http://h/v1/traces", headers_file="headers")
    assert "secret" not in str(told.value)


def test_without_the_extra_the_start_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "laar.telemetry.tracing", None)
    with pytest.raises(SettingError, match=r"pip install 'laar\[otel\]'"):
        starting(tmp_path, logs="http://h/v1/logs")
    starting(tmp_path)  # nobody misses it


def test_nothing_of_it_is_imported_unless_wanted(tmp_path):
    code = "import sys, laar.server.runner; print('opentelemetry' in str(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
