"""The hand-rendered metrics page equals one from prometheus-client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from laar_lab.sim.endpoint.metrics import ServingMetrics
from laar_lab.sim.engine import Load

LOAD = Load(
    running=2,
    waiting=3,
    kv_usage=0.25,
    preemptions=4,
    prefix_queries_tokens=100,
    prefix_hits_tokens=60,
)


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def filled(model: str = "sim") -> ServingMetrics:
    metrics = ServingMetrics(model, {"block_size": "16"})
    metrics.first_token(prompt=100, cached=64, queued_s=0.2, prefill_s=0.4)
    metrics.next_tokens(9, 0.03)
    metrics.finished(
        reason="stop",
        prompt=100,
        cached=64,
        generated=10,
        total_s=0.87,
        queued_s=0.2,
        decode_s=0.27,
    )
    return metrics


def test_an_independent_parser_reads_every_value() -> None:
    read = samples(filled().page(LOAD))
    own = (("engine", "0"), ("model_name", "sim"))
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 60,
        "vllm:prompt_tokens_total": 100,
        "vllm:prompt_tokens_cached_total": 64,
        "vllm:generation_tokens_total": 10,
        "vllm:inter_token_latency_seconds_count": 9,
        "vllm:inter_token_latency_seconds_sum": 0.27,
        "vllm:time_to_first_token_seconds_sum": 0.6,
        "vllm:request_queue_time_seconds_sum": 0.2,
        "vllm:request_prefill_kv_computed_tokens_sum": 36,
    }
    for name, value in expected.items():
        assert abs(read[name, own] - value) < 1e-9, name
    assert read["vllm:request_success_total", (*own[:1], ("finished_reason", "stop"), own[1])] == 1
    rejections = ("vllm:admission_rejections_total", (own[1], ("reason", "max_num_queued_reqs")))
    assert read[rejections] == 0
