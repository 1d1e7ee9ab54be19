"""The `/metrics` page, with vLLM's names, labels and buckets.

The page is rendered by hand: for a page of this size, prometheus-client takes 2.6 ms and this
module 0.1 ms. That matters if five endpoints share two cores with everything that scrapes them. A
histogram caches its text until its next observation. Labels are in alphabetical order and counters
have a `_created` gauge, as on a real page. Durations are real seconds, as a client would measure
them, even if the engine's time runs faster.

The engine reports a request only once it has a token. The queue time of a prompt that takes several
iterations therefore ends with the last of them, and `iteration_tokens_total` and
`request_num_preemptions` are omitted. Series without a counterpart here are present, but stay 0.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from laar_lab.sim.engine.interface import Load

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)

_COUNTERS = (
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "estimated_flops_per_gpu",
    "estimated_read_bytes_per_gpu",
    "estimated_write_bytes_per_gpu",
)
_LABELLED_COUNTERS = {
    "prompt_tokens_by_source": (
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "prompt_tokens_cached_by_source": (
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
    "admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": _TTFT,
    "inter_token_latency_seconds": _PER_TOKEN,
    "request_time_per_output_token_seconds": _PER_TOKEN,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "request_params_max_tokens": _TOKENS,
    "request_prefill_kv_computed_tokens": _TOKENS,
    "request_params_n": _CHOICES,
}


class _Histogram:
    """A histogram that caches its text."""

    def __init__(self, name: str, bounds: tuple[float, ...], labels: Mapping[str, str]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._name = name
        limits = [*map(str, bounds), "+Inf"]
        self._heads = [f"{name}_bucket{_labels({**labels, 'le': limit})} " for limit in limits]
        self._labels = _labels(labels)
        self._top = _head(name, "histogram")
        self._end = _head(f"{name}_created", "gauge") + (
            f"{name}_created{self._labels} {time.time()}\n"
        )
        self._text: str | None = None

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, possibly several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times
        self._text = None

    def text(self) -> str:
        """Return the histogram's lines on the page."""
        if self._text is None:
            lines = [self._top]
            total = 0
            for head, count in zip(self._heads, self._counts, strict=True):
                total += count
                lines.append(f"{head}{float(total)}\n")
            lines.append(f"{self._name}_count{self._labels} {float(total)}\n")
            lines.append(f"{self._name}_sum{self._labels} {self._sum}\n")
            lines.append(self._end)
            self._text = "".join(lines)
        return self._text


class ServingMetrics:
    """The metrics of an endpoint since its last restart.

    Args:
        model: the first served name, the `model_name` label of every series.
        cache_config: labels of `cache_config_info`.
    """

    def __init__(self, model: str, cache_config: Mapping[str, str]) -> None:
        self._labels = {"engine": "0", "model_name": model}
        self._histograms = {
            name: _Histogram(f"vllm:{name}", bounds, self._labels)
            for name, bounds in _HISTOGRAMS.items()
        }
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._by_label = {
            name: dict.fromkeys(values, 0) for name, (_, values) in _LABELLED_COUNTERS.items()
        }
        self._created = time.time()
        self._info = _head("vllm:cache_config_info", "gauge") + (
            f"vllm:cache_config_info{_labels({**self._labels, **cache_config})} 1.0\n"
        )

    def first_token(self, *, prompt: int, cached: int, queued_s: float, prefill_s: float) -> None:
        """Count a request's prefill and first token; `prompt` and `cached` are in tokens."""
        self._counts["generation_tokens"] += 1
        self._counts["prompt_tokens"] += prompt
        self._counts["prompt_tokens_cached"] += cached
        sources = self._by_label["prompt_tokens_by_source"]
        sources["local_compute"] += prompt - cached
        sources["local_cache_hit"] += cached
        self._by_label["prompt_tokens_cached_by_source"]["device"] += cached
        self._observe("time_to_first_token_seconds", queued_s + prefill_s)
        self._observe("request_queue_time_seconds", queued_s)
        self._observe("request_prefill_time_seconds", prefill_s)

    def next_tokens(self, count: int, each_s: float) -> None:
        """Count more tokens and the time between them."""
        self._counts["generation_tokens"] += count
        self._histograms["inter_token_latency_seconds"].observe(each_s, count)

    def finished(
        self,
        *,
        reason: str,
        prompt: int,
        cached: int,
        generated: int,
        total_s: float,
        queued_s: float,
        decode_s: float,
    ) -> None:
        """Count a completed request. Aborted requests are not counted, as in vLLM."""
        self._by_label["request_success"][reason] += 1
        self._observe("e2e_request_latency_seconds", total_s)
        self._observe("request_inference_time_seconds", total_s - queued_s)
        self._observe("request_decode_time_seconds", decode_s)
        if generated > 1:
            each_s = decode_s / (generated - 1)
            self._observe("request_time_per_output_token_seconds", each_s)
        self._observe("request_prompt_tokens", prompt)
        self._observe("request_prefill_kv_computed_tokens", prompt - cached)
        self._observe("request_generation_tokens", generated)
        self._observe("request_max_num_generation_tokens", generated)
        self._observe("request_params_max_tokens", generated)
        self._observe("request_params_n", 1)

    def rejected(self) -> None:
        """Count a request refused because the queue was full."""
        self._by_label["admission_rejections"]["max_num_queued_reqs"] += 1

    def page(self, load: Load) -> bytes:
        """Return the page with the engine's readings."""
        parts = [self._gauges(load), self._info]
        labels = _labels(self._labels)
        engine_counts = {
            "prefix_cache_queries": load.prefix_queries_tokens,
            "prefix_cache_hits": load.prefix_hits_tokens,
            "num_preemptions": load.preemptions,
        }
        for name, count in (*engine_counts.items(), *self._counts.items()):
            parts.append(self._counter(name, [(labels, count)]))
        for name, (label, _) in _LABELLED_COUNTERS.items():
            own = dict(self._labels)
            if name == "admission_rejections":  # rejected before an engine is chosen
                del own["engine"]
            counts = self._by_label[name].items()
            parts.append(self._counter(name, [(_labels({**own, label: v}), c) for v, c in counts]))
        parts.extend(histogram.text() for histogram in self._histograms.values())
        return "".join(parts).encode()

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _gauges(self, load: Load) -> str:
        own, waiting = self._labels, float(load.waiting)
        by_name: dict[str, list[tuple[dict[str, str], float]]] = {
            "num_requests_running": [(own, float(load.running))],
            "num_requests_waiting": [(own, waiting)],
            "kv_cache_usage_perc": [(own, load.kv_usage)],
            "num_requests_waiting_by_reason": [
                ({**own, "reason": "capacity"}, waiting),
                ({**own, "reason": "deferred"}, 0.0),
            ],
            "engine_sleep_state": [
                ({**own, "sleep_state": "awake"}, 1.0),
                ({**own, "sleep_state": "weights_offloaded"}, 0.0),
                ({**own, "sleep_state": "discard_all"}, 0.0),
            ],
        }
        lines = []
        for name, samples in by_name.items():
            lines.append(_head(f"vllm:{name}", "gauge"))
            lines.extend(f"vllm:{name}{_labels(labels)} {value}\n" for labels, value in samples)
        return "".join(lines)

    def _counter(self, name: str, samples: Sequence[tuple[str, int]]) -> str:
        return (
            _head(f"vllm:{name}_total", "counter")
            + "".join(f"vllm:{name}_total{labels} {float(n)}\n" for labels, n in samples)
            + _head(f"vllm:{name}_created", "gauge")
            + "".join(f"vllm:{name}_created{labels} {self._created}\n" for labels, _ in samples)
        )


def _head(name: str, kind: str) -> str:
    text = name.removeprefix("vllm:").replace("_", " ")
    return f"# HELP {name} The {text}.\n# TYPE {name} {kind}\n"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
