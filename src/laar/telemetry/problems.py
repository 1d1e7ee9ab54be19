"""Problems of the parts of a running picker: one log, for the page, the counter and stderr.

A part reports under a source: its kind, and for one of many a blank and its name, such as
``scrape 10.0.0.7:8000``. A new problem is logged once, and its end once; every report is counted by
kind. When a whole fleet vanishes, thousands of sources report. A problem beyond the cap is counted,
but neither remembered nor logged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping

_LOG = logging.getLogger(__name__)

MAX_PROBLEMS = 1000
"""Problems remembered, one for each source; more sources than that have one common cause."""


_EVENTS = 40


class Events(logging.Handler):
    """The last lines of laar's log, for the page: what began, ended or changed, and when."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.latest: deque[tuple[float, str]] = deque(maxlen=_EVENTS)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a line."""
        self.latest.append((record.created, record.getMessage()))


class Problems(Mapping[str, str]):
    """The present problems: a message by source."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self.since_s: dict[str, float] = {}
        """When each began, in seconds since the epoch."""
        self.counts: Counter[str] = Counter()
        """Reports since the start, by kind."""

    def report(self, source: str, message: str | None) -> None:
        """Note that `source` has a problem, again at each failure.

        None ends it; an empty message as well, since the source is no longer watched.
        """
        known = self._messages.get(source)
        if not message:
            if known is not None:
                del self._messages[source], self.since_s[source]
                _LOG.info(
                    "%s: %s", source, "works again" if message is None else "no longer watched"
                )
            return
        self.counts[source.partition(" ")[0]] += 1
        if known is None and len(self._messages) >= MAX_PROBLEMS:
            return
        self._messages[source] = message
        self.since_s.setdefault(source, time.time())
        if message != known:
            _LOG.warning("%s: %s", source, message)

    def __getitem__(self, source: str) -> str:
        return self._messages[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)
