"""Builds what sends decisions to an OpenTelemetry collector, where the settings want that.

Nothing of OpenTelemetry is imported otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from laar.errors import SettingError, install
from laar.settings import Settings
from laar.settings.otlp import ENVIRONMENT

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

_SLICE_S = 0.0005
"""Seconds for which encoding threads may hold the interpreter; its own 5 ms make decisions wait."""


def spans_of(settings: Settings) -> Spans | None:
    """Return what makes spans of decisions, not begun; None where none are wanted.

    Raises:
        SettingError: the extra is not installed, or the environment's ``OTEL_*`` can't be used.
    """
    if (url := settings.otlp.traces) is None:
        return None
    with _usable():
        from laar.telemetry.tracing import Spans

        return Spans(None if url == ENVIRONMENT else url, version("laar"))


def begin(spans: Spans) -> None:
    """Begin to send.

    Raises:
        SettingError: the environment's ``OTEL_BSP_*`` can't be used.
    """
    sys.setswitchinterval(_SLICE_S)
    with _usable():
        spans.begin()


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
