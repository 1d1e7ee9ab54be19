"""Metrics: counted as plain numbers on the request path, turned into Prometheus' form on a scrape.

A prometheus-client counter with labels costs a microsecond and a lock each time it is touched; a
dictionary entry costs a tenth of that. So the path writes into dictionaries and fixed arrays here,
and a custom collector reads them at each scrape. Labels are names from the settings (models,
endpoints, policies, reasons), never anything a client sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.telemetry.families import Histogram, counter, gauge, histogram
from laar.telemetry.problems import Problems

_OVERHEAD_BOUNDS_S = (5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25)
_LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics(Collector):
    """Everything the picker counts. `page()` renders it.

    Args:
        director: director of the endpoints; None shows none.
        held_body_bytes: bytes of incomplete bodies.
        problems: the problems that are open; None for a log of its own.
    """

    def __init__(
        self,
        director: Director | None = None,
        *,
        held_body_bytes: Callable[[], int] = int,
        problems: Problems | None = None,
    ) -> None:
        self.director = director
        self.problems = problems if problems is not None else Problems()
        self.streams_open = 0
        self._held_body_bytes = held_body_bytes
        self.stream_faults = 0
        self.ignored_messages = 0
        self.moved = 0
        self.failed_attempts = 0
        self.certificate_expires_at_s: Callable[[], float] | None = None
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._apart: Counter[str] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._completions: Counter[tuple[str, str]] = Counter()
        self._overhead = Histogram(_OVERHEAD_BOUNDS_S)
        self._ttft = Histogram(_LATENCY_BOUNDS_S)
        self._latency = Histogram(_LATENCY_BOUNDS_S)
        self._labels: list[str] = []
        self._labels_version = -1
        self._parts: list[Callable[[], Iterable[Metric]]] = []

    def add(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Shows another part's metrics on the same page; `collect` is called for each scrape."""
        self._parts.append(collect)

    # -- counting ------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Counts a decision by policy, reason and model."""
        self._decisions[decision.policy, decision.reason, decision.model] += 1
        if decision.prefiller is not None:
            self._apart[decision.model] += 1

    def settled(self, decision: Decision, end: Completion) -> None:
        """Counts how a request ended."""
        status = "none" if end.status is None else f"{end.status // 100}xx"
        self._completions[end.cause, status] += 1
        self._latency.observe(end.latency_s)
        if end.ttft_s is not None:
            self._ttft.observe(end.ttft_s)

    def refused(self, status: int, reason: str) -> None:
        """Counts a request that laar answered itself."""
        self._refusals[str(status), reason] += 1

    def overhead(self, seconds: float) -> None:
        """Seconds from the complete request body to the decision."""
        self._overhead.observe(seconds)

    # -- showing -------------------------------------------------------------------------------

    def page(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self) + self._endpoint_lines()

    def families(self) -> Iterator[Metric]:
        """Every metric family, those of endpoints included."""
        yield from self.collect()
        for name, help_text, _ in _ENDPOINT_COLUMNS:
            yield gauge(name, help_text, (), _ENDPOINT_LABELS)

    def collect(self) -> Iterator[Metric]:
        """Makes the families of all parts, its own first; called for each scrape."""
        yield from self._own()
        for collect in self._parts:
            yield from collect()

    def _own(self) -> Iterator[Metric]:
        yield counter(
            "laar_decisions",
            "Requests for which an endpoint was chosen.",
            self._decisions.items(),
            ("policy", "reason", "model"),
        )
        yield counter(
            "laar_prefills_apart",
            "Requests whose prompt is prefilled by one endpoint and answered by another.",
            self._apart.items(),
            ("model",),
        )
        yield counter(
            "laar_refusals",
            "Requests answered by laar itself, lists of models aside.",
            self._refusals.items(),
            ("status", "reason"),
        )
        yield counter(
            "laar_completions",
            "Requests that ended, by cause and by the class of the endpoint's status.",
            self._completions.items(),
            ("cause", "status"),
        )
        yield histogram(
            "laar_overhead_seconds",
            "Seconds from the complete request body to the decision.",
            self._overhead,
        )
        yield histogram(
            "laar_ttft_seconds",
            "Seconds from the decision to the answer's first byte, of sampled answers.",
            self._ttft,
        )
        yield histogram(
            "laar_latency_seconds",
            "Seconds from the decision to the end of the answer.",
            self._latency,
        )
        yield gauge("laar_streams_open", "ext_proc streams open now.", self.streams_open)
        yield gauge(
            "laar_held_body_bytes",
            "Bytes of request bodies held that are incomplete (gateway shape) or wait to be read "
            "(over 1 MB); bodies.max_held_bytes is the limit.",
            self._held_body_bytes(),
        )
        yield counter("laar_stream_faults", "Streams that failed inside laar.", self.stream_faults)
        yield counter(
            "laar_ignored_messages",
            "Messages from Envoy that do not fit the phase of their stream.",
            self.ignored_messages,
        )
        yield counter(
            "laar_moved", "Requests served by an endpoint other than the one picked.", self.moved
        )
        yield counter(
            "laar_failed_attempts",
            "Attempts that failed before an answer began, retried or not.",
            self.failed_attempts,
        )
        yield counter(
            "laar_collector_errors",
            "Problems that laar's collectors and other parts reported, by part.",
            self.problems.counts.items(),
            ("collector",),
        )
        if self.certificate_expires_at_s is not None:
            yield gauge(
                "laar_certificate_expires_timestamp_seconds",
                "Time at which the ext_proc port's certificate expires, in seconds since 1970.",
                self.certificate_expires_at_s(),
            )
        if self.director is not None:
            yield counter(
                "laar_degraded",
                "Decisions made without a part that failed, by part.",
                self.director.degraded.items(),
                ("what",),
            )
            yield gauge("laar_endpoints", "Endpoints that laar knows.", len(self.director.table))

    def _endpoint_lines(self) -> bytes:
        """One line for each endpoint and column.

        Written here, with labels that are kept until the endpoints change: prometheus-client takes
        6 us for a sample, and a thousand endpoints would hold the loop for 50 ms at each scrape.
        """
        if self.director is None:
            return b""
        table = self.director.table
        if self._labels_version != table.version:
            self._labels_version = table.version
            specs = [table.spec(int(slot)) for slot in table.active]
            self._labels = [
                f'{{endpoint="{_escaped(spec.address)}",model="{_escaped(spec.models[0])}"}} '
                for spec in specs
            ]
        lines = []
        for name, help_text, column in _ENDPOINT_COLUMNS:
            lines.append(f"# HELP {name} {help_text}\n# TYPE {name} gauge\n")
            values: list[float] = getattr(table, column)[table.active].tolist()
            lines += [
                f"{name}{labels}{value if value == value else 'NaN'}\n"
                for labels, value in zip(self._labels, values, strict=True)
            ]
        return "".join(lines).encode()


_ENDPOINT_LABELS = ("endpoint", "model")
_ENDPOINT_COLUMNS = (
    ("laar_endpoint_in_flight", "Requests in flight at the endpoint.", "in_flight"),
    (
        "laar_endpoint_queued_tokens",
        "Prompt tokens of the requests in flight at the endpoint.",
        "queued_tokens",
    ),
    (
        "laar_endpoint_rtt_seconds",
        "Smoothed round trip to the endpoint, in seconds; NaN if unknown.",
        "rtt_s",
    ),
    ("laar_endpoint_waiting", "Requests waiting in the engine; NaN if unknown.", "waiting"),
    ("laar_endpoint_running", "Requests running in the engine; NaN if unknown.", "running"),
    (
        "laar_endpoint_kv_usage_ratio",
        "Share of the engine's KV cache in use; NaN if unknown.",
        "kv_usage",
    ),
    (
        "laar_endpoint_missed_readings",
        "Scrapes and probes of the endpoint that failed in a row.",
        "failures",
    ),
)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
