"""`server-timing` on answers (W3C): where the time goes, for a browser's or a client's own tools.

What laar predicted is named by phase, and their sum `total`. What was seen by then, from the
decision to the answer's headers, is `total` again, or `headers` if the answer is streamed. It tells
clients about load, so it is for settings that name the plug-in (`routing.plugins`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Part, Plugin
from laar.fleet.endpoints import Slots


class ServerTiming(Plugin):
    """Adds the header, if `asked`: the settings name the plug-in."""

    name = "server-timing"

    def __init__(self, *, asked: bool = True) -> None:
        self._asked = asked

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part in all requests if asked."""
        return Part() if self._asked else None

    def select(self, view: View, part: Part, at: int) -> Part:
        """Take part in the answer."""
        return part

    def answers(self, decision: Decision, now: float) -> Iterable[tuple[str, str]]:
        """Return the header."""
        if not decision.request.shadow:
            seen = "headers" if decision.request.stream else "total"
            times = [*_predicted(decision), (seen, "seen", now - decision.now)]
            told = (f"{name};dur={1e3 * max(s, 0.0):.1f};desc={desc}" for name, desc, s in times)
            yield "server-timing", ", ".join(told)


def _predicted(decision: Decision) -> Iterator[tuple[str, str, float]]:
    """Yield the phases at the chosen endpoint, if it also served and the policy computes them."""
    view, at = decision.view, decision.position
    terms = None if view is None else view.terms
    if terms is not None and decision.flight.slot == decision.slot:
        phases = {"network": terms.rtt_s, "queue": terms.queue_s, "prefill": terms.prefill_s}
        for name, seconds in {**phases, "decode": terms.base_s, "total": terms.latency_s}.items():
            yield name, "predicted", seconds.item(at)
