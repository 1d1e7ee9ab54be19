"""`server-timing` on answers (W3C): where the time goes, for a browser's or a client's own tools.

What laar predicted is named by phase, and their sum `total`. What was seen by then, the decision to
the answer's headers, is `total` again, or `headers` if the answer is streamed. It tells clients
about load, so it is for settings that name the plug-in (`routing.plugins`). Pages of other origins
see it if `origins`, the value of ``timing-allow-origin``, allows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Part, Plugin
from laar.errors import SettingError
from laar.fleet.endpoints import Slots

_VALUE = re.compile(r"[\x21-\x7e]+(, [\x21-\x7e]+)*")


class ServerTiming(Plugin):
    """Adds the header, if `asked`: the settings name the plug-in."""

    name = "server-timing"

    def __init__(self, *, origins: str = "", asked: bool = True) -> None:
        if origins and not _VALUE.fullmatch(origins):
            raise SettingError("give `*`, or such as https://chat.example", setting="origins")
        self._asked, self._origins = asked, origins

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part in all requests if asked."""
        return Part() if self._asked else None

    def select(self, view: View, part: Part, at: int) -> Part:
        """Take part in the answer."""
        return part

    def answers(self, decision: Decision, now: float) -> Iterable[tuple[str, str]]:
        """Return the header."""
        if decision.request.shadow:
            return
        seen = "headers" if decision.request.stream else "total"
        times = [*_predicted(decision), (seen, "seen", now - decision.now)]
        told = (f"{name};dur={1000.0 * max(s, 0.0):.1f};desc={desc}" for name, desc, s in times)
        yield "server-timing", ", ".join(told)
        if self._origins:
            yield "timing-allow-origin", self._origins


def _predicted(decision: Decision) -> Iterator[tuple[str, str, float]]:
    """Yield the phases at the chosen endpoint, if it also served and the policy computes them."""
    view, at = decision.view, decision.position
    terms = None if view is None else view.terms
    if terms is None or decision.flight.slot != decision.slot:
        return
    phases = {"network": terms.rtt_s, "queue": terms.queue_s, "prefill": terms.prefill_s}
    for name, seconds in {**phases, "decode": terms.base_s, "total": terms.latency_s}.items():
        yield name, "predicted", seconds.item(at)
