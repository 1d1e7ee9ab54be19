"""Write dashboard.json next to this file: `python deploy/components/rules/dashboard.py`.

The panels filter by `job`, the label that Prometheus adds everywhere, in a cluster or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB = 'job=~"$job"'
EVERY = "[$__rate_interval]"
WIDTH, HEIGHT = 8, 8

Query = tuple[str, str]
Panel = tuple[str, str, str, list[Query]]
"""Title, unit, description, and pairs of expression and legend."""


def rate(metric: str, by: str = "", more: str = "") -> str:
    """Return the expression for a counter's summed rate per second."""
    labels = f"{JOB}, {more}" if more else JOB
    summed = f"sum by ({by}) " if by else "sum "
    return f"{summed}(rate({metric}{{{labels}}}{EVERY}))"


def quantile(q: float, metric: str, by: str = "") -> str:
    """Return the expression for a histogram's quantile."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{JOB}}}{EVERY})))"


def quantiles(metric: str) -> list[Query]:
    """Return the queries for a histogram's p50 and p95."""
    return [(quantile(0.5, metric), "p50"), (quantile(0.95, metric), "p95")]


def gauge(metric: str, by: str, how: str = "max") -> str:
    """Return the expression for an aggregated gauge."""
    return f"{how} by ({by}) ({metric}{{{JOB}}})"


def share(part: str, whole: str) -> str:
    """Return the expression for a ratio; it is finite if `whole` is 0."""
    return f"{part} / clamp_min({whole}, 1e-9)"


ROWS: dict[str, list[Panel]] = {
    "Answers": [
        (
            "Time to a correct answer",
            "s",
            "From a question's first attempt to the end of its correct answer, as reported to "
            "POST /outcomes. Empty while nothing is reported.",
            quantiles("laar_time_to_correct_answer_seconds"),
        ),
        (
            "Correct answers",
            "percentunit",
            "Share of the judged answers that were correct, by policy.",
            [
                (
                    share(
                        rate("laar_answers_reported_total", "policy", 'correct="true"'),
                        rate("laar_answers_reported_total", "policy"),
                    ),
                    "{{policy}}",
                )
            ],
        ),
        (
            "Attempts to a correct answer",
            "short",
            "Mean. More than one is a retry after a wrong answer.",
            [
                (
                    share(
                        rate("laar_attempts_to_correct_answer_sum"),
                        rate("laar_attempts_to_correct_answer_count"),
                    ),
                    "mean",
                )
            ],
        ),
    ],
    "Traffic": [
        (
            "Requests given an endpoint",
            "reqps",
            "By model. If all go to one: is it that much better, or are the others unknown?",
            [(rate("laar_decisions_total", "model"), "{{model}}")],
        ),
        (
            "Reasons",
            "reqps",
            "Why the endpoint was chosen. Anything but the policy's own name is a fallback.",
            [(rate("laar_decisions_total", "reason"), "{{reason}}")],
        ),
        (
            "Requests refused",
            "reqps",
            "By status and reason. 503 no-candidates: a model without endpoints.",
            [(rate("laar_refusals_total", "status, reason"), "{{status}} {{reason}}")],
        ),
        (
            "Time to first token",
            "s",
            "For streamed answers that were read.",
            quantiles("laar_ttft_seconds"),
        ),
        (
            "Complete answers",
            "s",
            "From decision to the last byte.",
            quantiles("laar_latency_seconds"),
        ),
        (
            "The picker's own time",
            "s",
            "From the complete body to the decision, without the wait in flow control. "
            "The alert LaarSlow fires at 20 ms.",
            [
                (quantile(0.5, "laar_overhead_seconds"), "p50"),
                (quantile(0.99, "laar_overhead_seconds"), "p99"),
            ],
        ),
    ],
    "Endpoints": [
        (
            "Endpoints by health",
            "short",
            "Ejected, failing and unreachable endpoints get no requests, or few.",
            [(gauge("laar_endpoints_by_health", "health"), "{{health}}")],
        ),
        (
            "In flight",
            "short",
            "Requests that this picker has sent and that have not ended.",
            [
                (
                    gauge("laar_endpoint_in_flight", "endpoint, model", "sum"),
                    "{{endpoint}} {{model}}",
                )
            ],
        ),
        (
            "Prompt tokens in flight",
            "short",
            "Prompt tokens of the requests in flight, cached or not, for each model.",
            [(gauge("laar_endpoint_queued_tokens", "model", "sum"), "{{model}}")],
        ),
        (
            "Round trip",
            "s",
            "As probed.",
            [(gauge("laar_endpoint_rtt_seconds", "endpoint", "avg"), "{{endpoint}}")],
        ),
        (
            "Waiting in engines",
            "short",
            "From the engines' metrics pages.",
            [(gauge("laar_endpoint_waiting", "endpoint"), "{{endpoint}}")],
        ),
        (
            "KV cache in use",
            "percentunit",
            "Near 100 % an engine preempts.",
            [(gauge("laar_endpoint_kv_usage_ratio", "endpoint"), "{{endpoint}}")],
        ),
        (
            "Failures",
            "ops",
            "By kind: statuses, resets, silence.",
            [(rate("laar_endpoint_failures_total", "endpoint, kind"), "{{endpoint}} {{kind}}")],
        ),
        (
            "Taken out",
            "ops",
            "Ejections of the breaker, and requests that Envoy served elsewhere than picked.",
            [
                (rate("laar_endpoint_ejections_total", "endpoint"), "ejected {{endpoint}}"),
                (rate("laar_moved_total"), "moved by Envoy"),
            ],
        ),
        (
            "Slowness",
            "short",
            "Time of requests at an endpoint, as a multiple of the median for its model.",
            [(gauge("laar_endpoint_pace_ratio", "endpoint"), "{{endpoint}}")],
        ),
        (
            "What goes wrong",
            "ops",
            "Errors of collectors, degraded parts and streams. All should be 0.",
            [
                (rate("laar_collector_errors_total", "collector"), "collector {{collector}}"),
                (rate("laar_degraded_total", "what"), "degraded {{what}}"),
                (rate("laar_stream_faults_total"), "stream faults"),
            ],
        ),
    ],
    "Estimates": [
        (
            "Predicted against measured",
            "short",
            "Predicted time to first token, divided by the measured time. 1 is right.",
            [
                (quantile(0.1, "laar_predicted_ttft_ratio"), "p10"),
                (quantile(0.5, "laar_predicted_ttft_ratio"), "p50"),
                (quantile(0.9, "laar_predicted_ttft_ratio"), "p90"),
            ],
        ),
        (
            "Prefix cache",
            "percentunit",
            "Share of the prompt tokens that laar believed to be cached, and that engines found.",
            [
                (
                    share(
                        rate("laar_prefix_believed_tokens_total"),
                        rate("laar_prefix_prompt_tokens_total"),
                    ),
                    "believed",
                ),
                (
                    share(
                        rate("laar_prefix_found_tokens_total"),
                        rate("laar_prefix_prompt_tokens_total"),
                    ),
                    "found",
                ),
            ],
        ),
        (
            "Drift of speeds",
            "s",
            "Seconds per prompt token, by laar fit and as observed. If they differ, fit again.",
            [
                (
                    gauge("laar_model_seconds_per_token", "model, source"),
                    "{{model}} {{source}}",
                )
            ],
        ),
    ],
    "Waiting": [
        (
            "Requests waiting",
            "short",
            "Requests that flow control holds, and sessions' turns that wait for room in a cache.",
            [(gauge("laar_flow_waiting", "job", "sum"), "{{job}}")],
        ),
        ("Time waited", "s", "For requests that waited.", quantiles("laar_flow_queue_seconds")),
        (
            "Shed",
            "reqps",
            "Answered with 503 instead of waiting longer.",
            [(rate("laar_flow_sheds_total", "reason"), "{{reason}}")],
        ),
        (
            "Room missing",
            "short",
            "Contexts that wait for room in a cache, as a number of endpoints. "
            "The alert LaarNoRoom fires at 0.1.",
            [(gauge("laar_flow_missing_endpoints", "job", "sum"), "{{job}}")],
        ),
    ],
    "Experiments": [
        (
            "Shadow: agreement",
            "percentunit",
            "Share of shadowed decisions in which the serving balancer chose as laar would have.",
            [
                (
                    share(
                        rate("laar_shadow_decisions_total", "", 'agreed="yes"'),
                        rate("laar_shadow_decisions_total", "", 'agreed=~"yes|no"'),
                    ),
                    "agreed",
                )
            ],
        ),
    ],
}


def panels() -> Iterator[dict[str, Any]]:
    """Yield rows and their panels, in a grid of three columns."""
    number, y = 0, 0
    for title, listed in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y += 1
        for index, (name, unit, text, queries) in enumerate(listed):
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": name,
                "description": text,
                "datasource": SOURCE,
                "gridPos": {
                    "x": index % 3 * WIDTH,
                    "y": y + index // 3 * HEIGHT,
                    "w": WIDTH,
                    "h": HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
                    for at, (expression, legend) in enumerate(queries)
                ],
            }
        y += -(-len(listed) // 3) * HEIGHT


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "datasource": SOURCE,
            "query": "label_values(laar_endpoints, job)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "laar",
        "title": "laar",
        "tags": ["laar"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(panels()),
    }


def text() -> str:
    """Return the content of dashboard.json."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    OUT.write_text(text())
