"""Builds what sends decisions to an OpenTelemetry collector, where the settings want that.

Nothing of OpenTelemetry is imported otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from laar.errors import SettingError, install
from laar.explain.decision_record import DecisionRecord
from laar.settings import Settings
from laar.settings.otlp import ENVIRONMENT
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.telemetry.otlp import Sender
    from laar.telemetry.tracing import LogRecords, Spans

_SLICE_S = 0.0005
"""Seconds for which encoding threads may hold the interpreter; its own 5 ms make decisions wait."""


class Exports:
    """Exports to a collector: none, spans, log records or both.

    Args:
        settings: all of them.
        problems: gets the faults of sending, by signal.

    Raises:
        SettingError: the extra is not installed, or the environment's ``OTEL_*`` can't be used.
    """

    def __init__(self, settings: Settings, problems: Problems) -> None:
        self.spans: Spans | None = None
        self.senders: dict[str, Sender] = {}
        self._records: LogRecords | None = None
        self._problems = problems
        if settings.otlp.traces is None and settings.otlp.logs is None:
            return
        try:
            self._build(settings)
        except ImportError:
            raise SettingError(
                f"this needs OpenTelemetry's SDK and exporter; {install('otel')}",
                setting="otlp",
            ) from None
        except ValueError as fault:
            raise _environment(fault) from None

    def _build(self, settings: Settings) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from laar.telemetry.otlp import quiet, resource
        from laar.telemetry.tracing import LogRecords, Spans

        quiet()
        wanted = settings.otlp
        of = resource(version("laar"))
        if wanted.traces is not None:
            sender = self._sender("traces", OTLPSpanExporter, wanted.traces)
            self.spans = Spans(sender, of)
        if wanted.logs is not None:
            sender = self._sender("logs", OTLPLogExporter, wanted.logs)
            self._records = LogRecords(sender, of)

    def _sender(self, signal: str, exporter: Callable[..., Any], url: str) -> Sender:
        from laar.telemetry.otlp import Sender

        sender = self.senders[signal] = Sender(
            exporter,
            None if url == ENVIRONMENT else url,
            on_problem=partial(self._report, signal),
        )
        return sender

    def _report(self, signal: str, fault: str | None) -> None:
        self._problems.report(f"otlp {signal}", f"otlp.{signal}: {fault}" if fault else None)

    def observers(self) -> list[Callable[[DecisionRecord], object]]:
        """Return what records decisions whose requests have ended, in order."""
        # Records name the span, which is gone once it has ended.
        return [made.settled for made in (self._records, self.spans) if made is not None]

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Begin to send; return the tasks that have to run beside serving, by name.

        Raises:
            SettingError: the environment's ``OTEL_BSP_*`` or ``OTEL_BLRP_*`` can't be used.
        """
        if self.senders:
            sys.setswitchinterval(_SLICE_S)
        try:
            for made in (self.spans, self._records):
                if made is not None:
                    made.begin()
        except ValueError as fault:
            raise _environment(fault) from None
        return [(f"otlp {signal}", sender.run) for signal, sender in self.senders.items()]

    def rehearse(self) -> None:
        """Begin and end at once, to find what would stop a start. Needs a running loop.

        Raises:
            SettingError: as `tasks`.
        """
        try:
            self.tasks()
        finally:
            for sender in self.senders.values():
                sender.end()


def _environment(fault: ValueError) -> SettingError:
    return SettingError(
        f"the environment's OTEL_* variables can't be used: {fault}; correct or unset them",
        setting="otlp",
    )
