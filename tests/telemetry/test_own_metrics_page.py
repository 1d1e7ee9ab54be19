"""The metrics page is well-formed, and its series grow only with endpoints and models."""

import math
import random
import re
from collections import Counter
from importlib.resources import files

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from laar.accuracy.reports import Answered
from laar.core.decision import Completion
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.request import Api, Request
from laar.server.admin.metrics import metrics, metrics_page
from laar.server.admin.port import own_routes
from laar.server.health_service import HealthService
from laar.server.picker import Picker
from laar.settings import Settings
from laar.telemetry.metrics import MAX_LABELS, Metrics
from support.hashing import Hasher

ODD = 'a "quoted" \\ name\nwith a line'


def picker_of(models, **settings):
    given = {"endpoints": [{"address": "127.0.0.1:1", "model": "m"}], **settings}
    picker = Picker(Settings.model_validate(given), seed=1)
    picker.table.replace(
        "test",
        [EndpointSpec(address=f"10.0.0.{i}:80", models=(m,)) for i, m in enumerate(models)],
    )
    return picker


def families(picker):
    return list(text_string_to_metric_families(metrics_page(picker).decode()))


def samples(picker):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families(picker)
        for sample in family.samples
    }


def test_endpoints_with_any_name_are_shown_and_unknown_values_have_no_series():
    picker = picker_of([ODD, "plain"])
    picker.table.read("10.0.0.1:80", Reading(waiting=3), 0.0)
    found = samples(picker)
    odd = (("endpoint", "10.0.0.0:80"), ("model", ODD))
    plain = (("endpoint", "10.0.0.1:80"), ("model", "plain"))
    assert ("laar_endpoint_waiting", odd) not in found
    assert not any(map(math.isnan, found.values()))
    assert found["laar_endpoint_waiting", plain] == 3.0
    assert found["laar_endpoint_in_flight", odd] == 0.0


@pytest.mark.long
def test_client_input_creates_no_metric_series():
    picker = picker_of(["a", "b"])
    director = picker.director

    def ask(i):
        request = Request(
            id=f"id-{i}",
            api=Api.CHAT,
            model="auto",
            task=f"task-{i}",
            policy=f"policy-{i}",
            session=f"session-{i}",
            tenant=f"tenant-{i}",
            tried=f"model-{i}",
        )
        end = Completion(status=200 + i % 3, cause="complete", latency_s=1.0)
        director.settle(director.decide(request, 0.0), end)

    for i in range(60):
        ask(i)
    before = set(samples(picker))
    for i in range(60, 400):
        ask(i)
    assert set(samples(picker)) == before


def test_the_page_shows_the_memory_of_the_prefix_index_and_its_evictions():
    picker = picker_of(["a"], prefix={"max_bytes": 1 << 20})
    index, hasher = picker.prefixes.index, Hasher(b"k" * 16)
    text = random.Random(1).randbytes(20_000).hex()
    index.resize(1)
    index.set_capacity(0, 30_000)
    index.insert(0, hasher.chain((text,)))
    found = samples(picker)
    assert 0 < found["laar_prefix_index_bytes", ()] < 1 << 20
    gone = {
        dict(labels)["cause"]: value
        for (name, labels), value in found.items()
        if name == "laar_prefix_blocks_forgotten_total"
    }
    assert gone["capacity"] > 0
    assert (gone["memory"], gone["disproved"]) == (0.0, 0.0)


def test_tasks_beyond_the_cap_share_the_label_other():
    picker = picker_of(["a"])
    for i in range(MAX_LABELS + 2):
        picker.metrics.answered(Answered("laar", f"t{i}", True, attempts=2, seconds=3.0))
    found = samples(picker)
    key = (("policy", "laar"), ("task", "other"))
    assert found["laar_answers_reported_total", (("correct", "true"), *key)] == 2
    assert found["laar_attempts_to_correct_answer_sum", key] == 4
    bucket = "laar_time_to_correct_answer_seconds_bucket"
    assert found[bucket, (("le", "2.0"), *key)] == 0
    assert found[bucket, (("le", "5.0"), *key)] == 2
    assert found[bucket, (("le", "+Inf"), *key)] == 2


@pytest.mark.parametrize("ratio", [0.15, 0.4, 1.0, 3.0, 8.0])
def test_the_shown_ratio_of_predicted_to_measured_times_is_within_a_factor_of_three(ratio):
    picker = picker_of(["a"])
    picker.metrics.ttft_ratio.observe(ratio)
    bounds = [bound for bound, count in picker.metrics.ttft_ratio.buckets() if count]
    assert ratio <= bounds[0] <= 3 * ratio


def test_ends_of_requests_are_counted_as_a_scraper_reads_them():
    picker, rng, sums = picker_of(["a"]), random.Random(1), Counter()
    for number in range(60):
        stream, ok = (rng.random() < 0.6 for _ in range(2))
        request = Request(id="r", api=Api.CHAT, model="a", spans=("x",), chars=1, stream=stream)
        decision = picker.director.decide(request, 100.0 * number)
        took = {"latency_s": rng.random() + 1.0, "ttft_s": rng.choice((None, rng.random()))}
        sums += {"latency": took["latency_s"], "ttft": stream * (took["ttft_s"] or 0.0)}
        sums["found"] += ok * number
        took |= {"prompt_tokens": 99, "cached_tokens": number}
        end = Completion(status=200 if ok else 500, cause="complete", **took)
        picker.director.settle(decision, end)
    found = samples(picker)
    names = {"latency": "latency_seconds_sum", "ttft": "ttft_seconds_sum"}
    names["found"] = "prefix_found_tokens_total"
    assert {name: found[f"laar_{of}", ()] for name, of in names.items()} == pytest.approx(sums)


def test_every_counter_is_read_by_a_row_of_the_table():
    rows = (files("laar.server.admin") / "metrics.txt").read_text()
    unread = [name for name in vars(Metrics()) if not name.startswith("_")
              and not re.search(rf"\| metrics\.{name}\b", rows)]  # fmt: skip
    assert unread == []


def with_all_parts(tmp_path):
    return picker_of(
        ["a"],
        flow={"enabled": True},
        decisions={"log": str(tmp_path / "log")},
        share={"snapshot_file": str(tmp_path / "snapshot")},
        context={"routes": [{"name": "all", "mode": "on"}]},
    )


def test_every_metric_is_on_the_page_with_its_labels(tmp_path):
    picker = with_all_parts(tmp_path)
    shown = {f.name + "_total" * (f.type == "counter"): f for f in families(picker)}
    assert set(shown) == {metric.name for metric in metrics()}
    for metric in metrics():
        family = shown[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 accepts."""


@pytest.mark.parametrize(
    ("accept", "kind", "parse"),
    [
        (PROMETHEUS, "application/openmetrics-text", open_metrics_families),
        ("application/openmetrics-text", "application/openmetrics-text", open_metrics_families),
        ("text/plain;version=0.0.4", "text/plain", text_string_to_metric_families),
        ("*/*", "text/plain", text_string_to_metric_families),
    ],
)
async def test_a_scraper_gets_the_format_it_asks_for(tmp_path, accept, kind, parse):
    picker = with_all_parts(tmp_path)
    picker.metrics.overhead_s.observe(0.001)
    picker.metrics.refused(429, "full")
    app = httpx.ASGITransport(Starlette(routes=own_routes(picker, HealthService())))
    async with httpx.AsyncClient(transport=app, base_url="http://laar") as client:
        answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.endswith("# EOF\n") is (parse is open_metrics_families)
    found = {family.name: family for family in parse(answer.text)}
    # The parsers leave out the suffix of counters.
    assert found.keys() >= {metric.name.removesuffix("_total") for metric in metrics()}
    assert found["laar_refusals"].samples[0].name == "laar_refusals_total"
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6
    assert found["process_cpu_seconds"].samples[0].value > 0
    assert found.keys() >= {"process_open_fds", "python_info", "python_gc_collections"}
