"""Observability of a running picker: decision memory and log, spans, the page and its feed.

One object owns the observers of decisions and completions, their routes and their tasks. No
decision depends on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from laar.accuracy.reports import Answered
from laar.errors import SettingError, install, unusable_environment
from laar.explain.decision_record import DecisionRecord
from laar.server.admin.answers import as_json
from laar.server.admin.explain import explain_routes
from laar.server.admin.feed import Feed
from laar.settings.reading import ENVIRONMENT
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.history import History
from laar.telemetry.log import DecisionLog
from laar.telemetry.page_model import PageModel

if TYPE_CHECKING:
    from laar.server.picker import Picker
    from laar.server.tasks import Tasks
    from laar.telemetry.tracing import Spans

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/runbook": ("runbook.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
}
_PAGE_HEADERS = {
    # Names on the page come from settings and clients. Even if one were not escaped, its markup
    # could not load or run anything.
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Observability:
    """Remembers, logs and displays decisions.

    Args:
        picker: the picker, whose other parts have been created.
    """

    def __init__(self, picker: Picker) -> None:
        settings, director, clock = picker.settings, picker.director, picker.clock
        metrics, reports, kept = picker.metrics, picker.learning.reports, settings.decisions
        self._picker = picker
        self.history = History()

        def answered(judged: Answered) -> None:
            metrics.answered(judged)
            if judged.correct and judged.seconds is not None:
                self.history.answered(judged.seconds, clock())
                self.page.correct_s.append(judged.seconds)

        reports.on_answered = answered
        on_settled: list[Callable[[DecisionRecord], object]] = [
            metrics.settled,
            self.history.settled,
        ]
        self.log: DecisionLog | None = None
        if kept.log is not None:
            report = partial(picker.problems.report, "decision log")
            self.log = DecisionLog(kept.log, on_problem=report)
            reports.on_verdict = self.log.judged
            on_settled.append(self.log.add)
        self.spans = None if settings.otlp.traces is None else _spans(settings.otlp.traces)
        """Creates spans for decisions; None if tracing is disabled."""
        if self.spans is not None:
            on_settled.append(self.spans.settled)
        self.memory = DecisionMemory(
            director.table,
            wall_clock=time.time,
            on_settled=on_settled,
            outcome_of=reports.outcome_of,
            max_decisions=kept.remember,
        )
        self.version = version("laar")
        self._clock = clock
        self.page: PageModel = PageModel(director, self.memory, picker.problems, self._about)
        logging.getLogger("laar").addHandler(self.page.events)
        self.feed = Feed(lambda: self.page.frame(clock()))

    def close(self) -> None:
        """End the feed's streams, and stop collecting log records."""
        self.feed.end_streams()
        logging.getLogger("laar").removeHandler(self.page.events)

    def _about(self) -> dict[str, object]:
        picker, routing, gate = self._picker, self._picker.settings.routing, self._picker.admission
        return {
            "version": self.version,
            "policy": routing.director.policy,
            "enforced": routing.enforcement.share,
            "calibrated": picker.learning.calibrated(picker.table.models),
            "sharing": picker.sharer.shown() if picker.sharer else None,
            "waiting_turns": len(gate.waiting_contexts()) if gate else 0,
        }

    def routes(self) -> list[BaseRoute]:
        """Return the routes for the admin port."""
        gate = self._picker.admission
        return [
            *explain_routes(self._picker),
            Route("/events", self.feed, methods=["GET"]),
            Route("/fleet", self._view(self.page.fleet)),
            Route("/history", self._view(self.history.curves)),
            Route("/sessions", self._view(lambda now: gate.shown(now) if gate else {})),
            *(Route(path, _file(*what)) for path, what in _PAGE.items()),
        ]

    def _view(self, shown: Callable[[float], object]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that answers with what `shown` returns for the current time."""

        async def serve(_request: Request) -> Response:
            return as_json(shown(self._clock()))

        return serve

    def start(self, tasks: Tasks) -> None:
        """Start sending spans, writing the log and making frames for the page.

        Raises:
            SettingError: the ``OTEL_*`` environment can't be used.
        """
        tasks.spawn("feed", self.feed.run)
        if self.spans is not None:
            self.spans.begin()
            tasks.spawn("otlp traces", self.spans.run)
        if self.log is not None:
            tasks.spawn("decision log", self.log.run)


def _spans(url: str) -> Spans:
    """Return the span exporter, not started yet; only this imports OpenTelemetry.

    Raises:
        SettingError: the extra is not installed, or the ``OTEL_*`` environment can't be used.
    """
    try:
        from laar.telemetry.tracing import Spans

        return Spans(None if url == ENVIRONMENT else url)
    except ImportError:
        raise SettingError(
            f"this needs OpenTelemetry's SDK and exporter; {install('otel')}", setting="otlp"
        ) from None
    except ValueError as fault:  # the SDK reads some variables when it is imported
        raise unusable_environment(fault) from None


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("laar.server.admin") / "page" / name).read_bytes()

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return serve
