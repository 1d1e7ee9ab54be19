"""Builds what sends decisions to an OpenTelemetry collector, where the settings want that.

Nothing of OpenTelemetry is imported otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from laar.errors import SettingError, install
from laar.explain.decision_record import DecisionRecord
from laar.settings import Settings
from laar.settings.otlp import ENVIRONMENT

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

_SLICE_S = 0.0005
"""Seconds for which encoding threads may hold the interpreter; its own 5 ms make decisions wait."""


class Exports:
    """The export of spans to a collector, if there is one.

    Args:
        settings: all of them.

    Raises:
        SettingError: the extra is not installed, or the environment's ``OTEL_*`` can't be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.spans: Spans | None = None
        if (url := settings.otlp.traces) is not None:
            with _usable():
                from laar.telemetry.tracing import Spans

                self.spans = Spans(None if url == ENVIRONMENT else url, version("laar"))

    def observers(self) -> list[Callable[[DecisionRecord], object]]:
        """Return what records decisions whose requests have ended."""
        return [] if self.spans is None else [self.spans.settled]

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Begin to send; return the tasks that have to run beside serving, by name.

        Raises:
            SettingError: the environment's ``OTEL_BSP_*`` can't be used.
        """
        if self.spans is None:
            return []
        sys.setswitchinterval(_SLICE_S)
        with _usable():
            self.spans.begin()
        return [("otlp traces", self.spans.run)]

    def rehearse(self) -> None:
        """Begin and end at once, to find what would stop a start.

        Raises:
            SettingError: as `tasks`.
        """
        try:
            self.tasks()
        finally:
            if self.spans is not None:
                self.spans.end()


@contextmanager
def _usable() -> Iterator[None]:
    """Turn what stops the SDK into errors of the setting."""
    try:
        yield
    except ImportError:
        raise SettingError(
            f"this needs OpenTelemetry's SDK and exporter; {install('otel')}", setting="otlp"
        ) from None
    except ValueError as fault:
        raise SettingError(
            f"the environment's OTEL_* variables can't be used: {fault}; correct or unset them",
            setting="otlp",
        ) from None
