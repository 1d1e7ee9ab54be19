"""Builds what sends decisions to an OpenTelemetry collector, where the settings want that.

Nothing of OpenTelemetry is imported otherwise.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from laar.config import Settings
from laar.core.account import Account
from laar.errors import SettingError

if TYPE_CHECKING:
    from laar.telemetry.otlp import Sender
    from laar.telemetry.tracing import LogRecords, Spans

__all__ = ["Exports"]


class Exports:
    """What is sent to a collector: nothing, spans, log records or both.

    Args:
        settings: all of them.
        rng: draws samples and ids.
        problem: told what is wrong with a source, or None once it works again.

    Raises:
        SettingError: the extra is not installed, or the file of headers can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        rng: random.Random,
        problem: Callable[[str, str | None], None],
    ) -> None:
        self.spans: Spans | None = None
        self.senders: dict[str, Sender] = {}
        self._records: LogRecords | None = None
        wanted = settings.otlp
        if wanted.traces is None and wanted.logs is None:
            return
        try:
            from laar.telemetry.otlp import LOGS, TRACES, Sender, resource
            from laar.telemetry.tracing import LogRecords, Spans
        except ImportError:
            raise SettingError(
                "otlp needs the package opentelemetry-proto: pip install 'laar[otel]'"
            ) from None
        of = resource(wanted.service_name, version("laar"), str(uuid.uuid4()))
        headers = _read_headers(wanted.headers_file)
        for name, url, signal in (("traces", wanted.traces, TRACES), ("logs", wanted.logs, LOGS)):
            if url is not None:
                self.senders[name] = Sender(
                    url,
                    signal,
                    of,
                    headers=headers,
                    timeout_s=wanted.timeout_s,
                    max_queued=wanted.max_queued,
                    on_problem=partial(problem, f"otlp {name}"),
                )
        if wanted.traces is not None:
            self.spans = Spans(
                self.senders["traces"],
                share=wanted.sample_without_parent,
                rng=rng,
                wall_clock=time.time,
            )
        if wanted.logs is not None:
            share = settings.decisions.log_sample
            self._records = LogRecords(self.senders["logs"], share=share, rng=rng)

    def use(self, settings: Settings) -> None:
        """Goes by changed settings."""
        if self.spans is not None:
            self.spans.share = settings.otlp.sample_without_parent
        if self._records is not None:
            self._records.share = settings.decisions.log_sample

    def settled(self, account: Account) -> None:
        """Takes a decision whose request has ended."""
        if self.spans is not None:
            self.spans.settled(account)
        if self._records is not None:
            self._records.settled(account)

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What has to run beside serving, by name."""
        return [(f"otlp {name}", sender.run) for name, sender in self.senders.items()]


def _read_headers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingError(f"otlp.headers_file: {path} can't be read: {fault}") from None
    headers = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (name and colon and value and value.isprintable()) or " " in name:
            raise SettingError(
                f"otlp.headers_file: {path}:{number}: give `name: value`, such as "
                "`authorization: Bearer ...`"
            )
        headers[name] = value
    return headers
