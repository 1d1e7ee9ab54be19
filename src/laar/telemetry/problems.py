"""Current problems of a running picker, for the page, a counter and the log.

Each part of the picker reports problems under a source: a `Fault`, with or without a name, such as
``scrape 10.0.0.7:8000``. A problem's start and end are each logged once; every report is counted by
fault. If a whole fleet vanishes, thousands of sources report: problems above the cap are counted,
but neither remembered nor logged.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from itertools import islice

from laar.faults import Fault

_LOG = logging.getLogger(__name__)

MAX_PROBLEMS = 1000
"""Maximum number of problems remembered, one per source; further ones probably share a cause."""

_EVENTS = 40
_MAX_CHARS = 4000  # an API server's message may have any length
_CONTROL = re.compile(r"[\0-\t\v-\x1f\x7f-\x9f]")  # a terminal that shows the log obeys them
PASSWORD = re.compile(r"(?<=://)[^/\s]+@")  # credentials in a metrics_url, which may contain an @


class Events(logging.Handler):
    """Recent lines of laar's log, for the page: what started, ended or changed, and when."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.latest: deque[tuple[float, str]] = deque(maxlen=_EVENTS)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a log line."""
        self.latest.append((record.created, record.getMessage()))


class Problems(dict[str, str]):
    """The current problems: messages by source. Only `report` changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.since_s: dict[str, float] = {}
        """When each problem began, in seconds since the epoch."""
        self.counts: Counter[str] = Counter()
        """Reports by fault since the start."""

    def current(self) -> Counter[str]:
        """Return the number of current problems by fault."""
        return Counter(source.partition(" ")[0] for source in self)

    def shown(self, most: int) -> dict[str, dict[str, object]]:
        """Return the first problems by source, each with its remedy and what the runbook says."""
        found = {}
        for source, message in islice(self.items(), most):
            fault, since_s = Fault(source.partition(" ")[0]), self.since_s[source]
            more = {"remedy": fault.remedy, "runbook": f"/runbook#{fault.section}"}
            found[source] = {"message": message, "since_s": since_s, **more}
        return found

    def report(self, fault: Fault, message: str | None, name: str = "") -> None:
        """Report a problem, with the name of what has it if there may be several.

        Call this again at each failure. None ends the problem. So does an empty message, for a
        source that is no longer watched.
        """
        source = f"{fault} {name}" if name else str(fault)
        known = self.get(source)
        if not message:
            if known is not None:
                del self[source], self.since_s[source]
                _LOG.info(
                    "%s: %s", source, "works again" if message is None else "no longer watched"
                )
            return
        message = _CONTROL.sub(" ", PASSWORD.sub("", message))[:_MAX_CHARS]
        self.counts[fault] += 1
        if known is None and len(self) >= MAX_PROBLEMS:
            return
        self[source] = message
        self.since_s.setdefault(source, time.time())
        if message != known:
            _LOG.warning("%s: %s; %s", source, message, fault.fix)
