"""Set up sending of decision spans to an OpenTelemetry collector, if the settings enable it.

Otherwise OpenTelemetry is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from laar.errors import SettingError, install
from laar.settings import Settings
from laar.settings.reading import ENVIRONMENT

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

_SLICE_S = 0.0005
"""Seconds that encoding threads may hold the GIL; the default of 5 ms would delay decisions."""


def spans_of(settings: Settings) -> Spans | None:
    """Return the exporter of decision spans, not started yet; None if disabled.

    Raises:
        SettingError: the extra is not installed, or the ``OTEL_*`` environment can't be used.
    """
    if (url := settings.otlp.traces) is None:
        return None
    with _usable():
        from laar.telemetry.tracing import Spans

        return Spans(None if url == ENVIRONMENT else url)


def begin(spans: Spans) -> None:
    """Start sending spans.

    Raises:
        SettingError: the ``OTEL_BSP_*`` environment can't be used.
    """
    sys.setswitchinterval(_SLICE_S)
    with _usable():
        spans.begin()


@contextmanager
def _usable() -> Iterator[None]:
    """Convert exceptions of the SDK's set-up into errors of the setting."""
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
