"""Metrics of the learners, read from them when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from laar.accuracy.latency import LatencyCheck
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports
from laar.accuracy.tasks import TaskNames

__all__ = ["LearningMetrics"]


class LearningMetrics(Collector):
    """Outcomes by what became of them, and c(m) measured against seen.

    Args:
        reports: which outcomes counted.
        online: what they add up to; None when it is switched off.
        latency: the check of c(m).
        tasks: that clients name.
    """

    def __init__(
        self,
        reports: OutcomeReports,
        online: OnlineOutcomes | None,
        latency: LatencyCheck,
        tasks: TaskNames,
    ) -> None:
        self._tasks = tasks
        self._reports = reports
        self._online = online
        self._latency = latency

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        for name, help_text, counts in (
            ("laar_outcomes", "Reported outcomes.", self._reports.verdicts),
            ("laar_retry_outcomes", "Failures inferred from retries.", self._reports.retries),
        ):
            family = CounterMetricFamily(name, help_text, labels=("verdict",))
            for verdict, count in counts.items():
                family.add_metric((verdict.value,), count)
            yield family
        yield GaugeMetricFamily(
            "laar_outcomes_pending", "Decisions remembered for outcomes.", len(self._reports)
        )
        if self._online is not None:
            yield GaugeMetricFamily(
                "laar_outcome_cells", "Cells that hold reported outcomes.", len(self._online)
            )
            yield CounterMetricFamily(
                "laar_outcomes_refused", "Outcomes without a free cell.", self._online.refused
            )
            yield CounterMetricFamily(
                "laar_tasks_ignored",
                "Requests whose x-laar-task was one too many of their tenant's.",
                self._tasks.ignored,
            )
            weights = GaugeMetricFamily(
                "laar_model_prior_weight",
                "Weight of the artifact's prior, in outcomes; low where outcomes contradict it.",
                labels=("model",),
            )
            for model, weight in self._online.prior_weights().items():
                weights.add_metric((model,), weight)
            yield weights
        yield CounterMetricFamily(
            "laar_latency_samples_refused",
            "Times to first token that made no sense.",
            self._latency.refused,
        )
        yield from self._speeds()

    def _speeds(self) -> Iterator[Metric]:
        speed = GaugeMetricFamily(
            "laar_model_seconds_per_token", "c(m), measured and seen.", labels=("model", "source")
        )
        drifted = GaugeMetricFamily(
            "laar_model_drifted", "1 where c(m) is not as measured.", labels=("model",)
        )
        for drift in self._latency.report():
            if drift.measured_s_per_token is not None:
                speed.add_metric((drift.model, "measured"), drift.measured_s_per_token)
            if drift.seconds_per_token is not None:
                speed.add_metric((drift.model, "seen"), drift.seconds_per_token)
            drifted.add_metric((drift.model,), float(drift.drifted))
        yield speed
        yield drifted
