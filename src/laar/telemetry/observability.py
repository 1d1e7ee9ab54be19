"""Observability of a running picker: decision memory, history and log, the page's data.

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

from laar.accuracy.reports import Answered, OutcomeReports
from laar.core.director import Director
from laar.explain.decision_record import DecisionRecord
from laar.faults import Fault
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.history import History
from laar.telemetry.log import DecisionLog
from laar.telemetry.metrics import Metrics
from laar.telemetry.page_model import PageModel
from laar.telemetry.problems import Problems


class Observability:
    """Remembers and logs decisions.

    Args:
        reports: the outcomes that clients report.
        metrics: counts settled decisions and outcomes.
        problems: receives those of the log.
        about: returns what the page shows of the picker's other parts.
        log: file of the decision log; None for no log.
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
    ) -> None:
        self.version = version("laar")
        self.history = History()
        self.log: DecisionLog | None = None
        on_settled: list[Callable[[DecisionRecord], object]] = [
            metrics.settled,
            self.history.settled,
        ]
        if log is not None:
            self.log = DecisionLog(log, on_problem=partial(problems.report, Fault.DECISION_LOG))
            reports.on_verdict = self.log.judged
            on_settled.append(self.log.add)
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
        """Start writing the log, as a task that `spawn` makes."""
        if self.log is not None:
            spawn("decision log", self.log.run)
