"""Builds what sends decisions to an OpenTelemetry collector, where the settings want that.

Nothing of OpenTelemetry is imported otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

from laar.errors import SettingError, install
from laar.explain.decision_record import DecisionRecord
from laar.settings import Settings
from laar.settings.otlp import ENVIRONMENT
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.telemetry.otlp import Sender
    from laar.telemetry.tracing import Spans

_SLICE_S = 0.0005
"""Seconds for which encoding threads may hold the interpreter; its own 5 ms make decisions wait."""


class Exports:
    """The export of spans to a collector, if there is one.

    Args:
        settings: all of them.
        problems: gets the faults of sending.

    Raises:
        SettingError: the extra is not installed, or the environment's ``OTEL_*`` can't be used.
    """

    def __init__(self, settings: Settings, problems: Problems) -> None:
        self.spans: Spans | None = None
        self.sender: Sender | None = None
        self._problems = problems
        if (url := settings.otlp.traces) is None:
            return
        try:
            self._build(None if url == ENVIRONMENT else url)
        except ImportError:
            raise SettingError(
                f"this needs OpenTelemetry's SDK and exporter; {install('otel')}",
                setting="otlp",
            ) from None
        except ValueError as fault:
            raise _environment(fault) from None

    def _build(self, url: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from laar.telemetry.otlp import Sender, quiet, resource
        from laar.telemetry.tracing import Spans

        quiet()
        self.sender = Sender(OTLPSpanExporter, url, on_problem=self._report)
        self.spans = Spans(self.sender, resource(version("laar")))

    def _report(self, fault: str | None) -> None:
        self._problems.report("otlp traces", f"otlp.traces: {fault}" if fault else None)

    def observers(self) -> list[Callable[[DecisionRecord], object]]:
        """Return what records decisions whose requests have ended."""
        return [] if self.spans is None else [self.spans.settled]

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Begin to send; return the tasks that have to run beside serving, by name.

        Raises:
            SettingError: the environment's ``OTEL_BSP_*`` can't be used.
        """
        if self.spans is None or self.sender is None:
            return []
        sys.setswitchinterval(_SLICE_S)
        try:
            self.spans.begin()
        except ValueError as fault:
            raise _environment(fault) from None
        return [("otlp traces", self.sender.run)]

    def rehearse(self) -> None:
        """Begin and end at once, to find what would stop a start. Needs a running loop.

        Raises:
            SettingError: as `tasks`.
        """
        try:
            self.tasks()
        finally:
            if self.sender is not None:
                self.sender.end()


def _environment(fault: ValueError) -> SettingError:
    return SettingError(
        f"the environment's OTEL_* variables can't be used: {fault}; correct or unset them",
        setting="otlp",
    )
