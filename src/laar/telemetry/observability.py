"""Observability of a running picker: decision memory, history and log, spans, the page's data.

One object owns the observers of decisions and completions, and their tasks. No decision depends on
it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from laar.accuracy.reports import Answered, OutcomeReports
from laar.core.director import Director
from laar.errors import SettingError, install, unusable_environment
from laar.explain.decision_record import DecisionRecord
from laar.faults import Fault
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.history import History
from laar.telemetry.log import DecisionLog
from laar.telemetry.metrics import Metrics
from laar.telemetry.page_model import PageModel
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans


class Observability:
    """Remembers and logs decisions.

    Args:
        reports: the outcomes that clients report.
        metrics: counts settled decisions and outcomes.
        problems: receives those of the log.
        about: returns what the page shows of the picker's other parts.
        log: file of the decision log; None for no log.
        spans: sends a span for each decision; None if tracing is disabled.
    """

    def __init__(
        self,
        director: Director,
        reports: OutcomeReports,
        metrics: Metrics,
        problems: Problems,
        *,
        clock: Callable[[], float],
        about: Callable[[], dict[str, object]],
        log: Path | None,
        spans: Spans | None,
    ) -> None:
        self.version = version("laar")
        self.history = History()
        self.spans = spans
        self.log: DecisionLog | None = None
        on_settled: list[Callable[[DecisionRecord], object]] = [
            metrics.settled,
            self.history.settled,
        ]
        if log is not None:
            self.log = DecisionLog(log, on_problem=partial(problems.report, Fault.DECISION_LOG))
            reports.on_verdict = self.log.judged
            on_settled.append(self.log.add)
        if spans is not None:
            on_settled.append(spans.settled)
        self.memory = DecisionMemory(
            director.table,
            wall_clock=time.time,
            on_settled=on_settled,
            outcome_of=reports.outcome_of,
        )
        self.page = PageModel(
            director, self.memory, problems, lambda: {"version": self.version, **about()}
        )

        def answered(judged: Answered) -> None:
            metrics.answered(judged)
            if judged.correct and judged.seconds is not None:
                self.history.answered(judged.seconds, clock())
                self.page.correct_s.append(judged.seconds)

        reports.on_answered = answered
        logging.getLogger("laar").addHandler(self.page.events)

    def close(self) -> None:
        """Stop collecting log records."""
        logging.getLogger("laar").removeHandler(self.page.events)

    def start(self, spawn: Callable[[str, Callable[[], Awaitable[None]]], object]) -> None:
        """Start sending spans and writing the log, each as a task that `spawn` makes.

        Raise `SettingError` if the ``OTEL_*`` environment can't be used.
        """
        if self.spans is not None:
            self.spans.begin()
            spawn("otlp traces", self.spans.run)
        if self.log is not None:
            spawn("decision log", self.log.run)


def exporter(url: str | None) -> Spans:
    """Return the span exporter, not started yet; only this imports OpenTelemetry.

    Raise `SettingError` if the extra is not installed, or the ``OTEL_*`` environment can't be used.

    Args:
        url: where to send spans; None for what the ``OTEL_*`` environment says.
    """
    try:
        from laar.telemetry.tracing import Spans

        return Spans(url)
    except ImportError:
        raise SettingError(
            f"this needs OpenTelemetry's SDK and exporter; {install('otel')}", setting="otlp"
        ) from None
    except ValueError as fault:  # the SDK reads some variables when it is imported
        raise unusable_environment(fault) from None
