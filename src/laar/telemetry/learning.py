"""Metrics of the learners, read from them at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric

from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import Answered, OutcomeReports
from laar.accuracy.tasks import TaskNames
from laar.core.engine_model import Seen
from laar.telemetry.families import counter, gauge

MAX_LABELS = 64
"""Tasks with series of their own; the others share the one called ``other``."""

_SECONDS = (0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_ATTEMPTS = (1, 2, 3, 4, 5, 6, 8, 10)


class LearningMetrics:
    """Reports of outcomes by verdict, and c(m) measured against seen.

    Args:
        reports: the reported outcomes, by verdict.
        online: the estimates from them; None when it is switched off.
        speeds: gives c(m) by model: the artifact's, and what serving has it at.
        tasks: that clients name.
    """

    def __init__(
        self,
        reports: OutcomeReports,
        online: OnlineOutcomes | None,
        speeds: Callable[[], Mapping[str, tuple[float | None, Seen | None]]],
        tasks: TaskNames,
    ) -> None:
        self._tasks = tasks
        self._reports = reports
        self._online = online
        self._speeds = speeds
        labels = ("policy", "task")
        self._answers = Counter(
            "laar_answers_reported",
            "Answers judged by outcome reports, by policy, task and verdict.",
            (*labels, "correct"),
            registry=None,
        )
        self._seconds = Histogram(
            "laar_time_to_correct_answer_seconds",
            "Seconds from a question's first attempt to the end of the answer reported as correct.",
            labels,
            buckets=_SECONDS,
            registry=None,
        )
        self._attempts = Histogram(
            "laar_attempts_to_correct_answer",
            "Attempts per question up to the answer reported as correct.",
            labels,
            buckets=_ATTEMPTS,
            registry=None,
        )
        self._labels: set[str] = set()
        reports.on_answered = self._answered

    def _answered(self, answered: Answered) -> None:
        """Counts a judged answer; clients name the tasks, so their number has a cap."""
        task = answered.task
        if task not in self._labels:
            if len(self._labels) < MAX_LABELS:
                self._labels.add(task)
            else:
                task = "other"
        self._answers.labels(answered.policy, task, str(answered.correct).lower()).inc()
        if answered.correct:
            self._attempts.labels(answered.policy, task).observe(answered.attempts)
            if answered.seconds is not None:
                self._seconds.labels(answered.policy, task).observe(answered.seconds)

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        yield counter(
            "laar_outcomes",
            "Reported outcomes, by verdict on the report.",
            ((verdict.value, count) for verdict, count in self._reports.verdicts.items()),
            ("verdict",),
        )
        yield counter(
            "laar_retry_outcomes",
            "Wrong answers inferred from retries, by verdict on the inference.",
            ((verdict.value, count) for verdict, count in self._reports.retries.items()),
            ("verdict",),
        )
        yield from self._judged()
        yield gauge(
            "laar_outcomes_pending",
            "Decisions remembered in memory, for which an outcome may still be reported.",
            len(self._reports),
        )
        if self._online is not None:
            yield from self._estimates(self._online)
        yield from self._model_speeds()

    def _estimates(self, online: OnlineOutcomes) -> Iterator[Metric]:
        yield gauge(
            "laar_outcome_cells",
            "Cells (model and kind of request) that hold reported outcomes.",
            len(online),
        )
        yield counter(
            "laar_outcomes_refused",
            "Outcomes refused because the table of cells was full.",
            online.refused,
        )
        yield counter(
            "laar_tasks_ignored",
            "Requests whose x-laar-task was ignored because their tenant already uses its "
            "limit of tasks.",
            self._tasks.ignored,
        )
        yield gauge(
            "laar_model_prior_weight",
            "Weight of the artifact's prior, as a number of outcomes; low where outcomes "
            "contradict it.",
            online.prior_weights().items(),
            ("model",),
        )
        yield gauge(
            "laar_reporter_weight",
            "Weight of a reporter's outcomes: 1, or less if it contradicts other reporters.",
            online.reporter_weights().items(),
            ("reporter",),
        )

    def _judged(self) -> Iterator[Metric]:
        for metric in (self._answers, self._seconds, self._attempts):
            for family in metric.collect():
                # The reference page reads the labels where a family of its own would have them.
                setattr(family, "_labelnames", metric._labelnames)  # noqa: B010
                yield family

    def _model_speeds(self) -> Iterator[Metric]:
        rows = [
            ((model, source), seconds)
            for model, (measured, seen) in self._speeds().items()
            for source, seconds in (
                ("measured", measured),
                ("seen", seen.seconds_per_token if seen else None),
            )
            if seconds is not None
        ]
        yield gauge(
            "laar_model_seconds_per_token",
            "Prefill seconds per token, c(m), by source: measured (artifact) or seen (what serving "
            "uses, from the artifact and live traffic).",
            rows,
            ("model", "source"),
        )
