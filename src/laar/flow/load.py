"""Load control: which endpoints may take a request now, and with which priority (Medha paper)."""

from __future__ import annotations

import math

import numpy as np

from laar.core.decision import Decision
from laar.core.director import Director
from laar.fleet.endpoints import Mask, Slots
from laar.flow.queue import Item
from laar.flow.saturation import Long, has_room, longs_at
from laar.flow.settings import FlowSettings
from laar.flow.slack import RHO_MAX
from laar.plugins.apart import PrefillApart

_MAX_BAND = 1000
"""Bands are clamped to this, so that an engine's priority stays an exact JSON number."""
_BAND_STEP = 1 << 40
"""Engine priorities between two bands: 34 years in milliseconds, so that they never mix."""

_SHORTS_LATELY_S = 5.0
"""Seconds after a short prompt during which endpoints are kept free because more may follow."""


class LoadControl:
    """Keeps endpoints below their limits, and long prompts away from short ones.

    Attributes:
        longs: the long prompts in flight that await their first token, by id of the decision.
        short_at: when the last short prompt arrived.
    """

    def __init__(self, director: Director) -> None:
        self.longs: dict[str, Long] = {}
        self.short_at = -math.inf
        self._table, self._engines = director.table, director.engines

    def room(
        self,
        slots: Slots,
        item: Item,
        settings: FlowSettings,
        now: float,
        is_long: Mask,
        *,
        shorts_wait: bool,
    ) -> Mask:
        """Return the endpoints that may take a request, which `is_long` at some of them."""
        table, engines = self._table, self._engines
        longs = longs_at(self.longs.values(), engines, slots, now)
        room = has_room(
            table, engines, settings, slots, now, is_long, longs, shorts_wait=shorts_wait
        )
        return room & self._apart(longs[0] > 0.0, item, now, is_long)

    def _apart(self, mixed: Mask, item: Item, now: float, is_long: Mask) -> Mask:
        """Keep long and short prompts on different endpoints while possible.

        Engines that serve in order of arrival delay a short prompt by the whole prefill of a long
        one ahead. So shorts wait for an endpoint that has no long prompt, if there is any, and
        longs with slack leave half of the endpoints to shorts if any of these arrived recently.
        Leaving shorts only the last endpoint made it the bottleneck of a fleet with mostly short
        requests (`laar lab run medha-picker`).
        """
        free = ~mixed
        slack_s = item.arrival_s - item.earlier_s + item.objective_s - now - item.work_s
        yields = (
            len(free) > 1
            and free.sum() <= max(1, len(free) // 2)
            and now - self.short_at < _SHORTS_LATELY_S
            and slack_s > RHO_MAX * item.work_s
        )
        return np.where(is_long, mixed | (not yields), free | ~free.any())

    def count(self, decision: Decision, settings: FlowSettings) -> None:
        """Count a long prompt at the endpoint that prefills it."""
        flight, prefiller = decision.flight, PrefillApart.of(decision)
        began, tokens = flight.began, decision.uncached_tokens
        if prefiller is not None:
            began, tokens = prefiller.began, prefiller.uncached_tokens
        if tokens > settings.long_tokens and began is not None:
            free_at = self._engines.traffic.free_at.item(began.slot)
            until = math.inf if began.shown else free_at
            self.longs[decision.id] = Long(began.slot, began.work_s, until)
            flight.admitted = True

    def moved(self, decision: Decision, settings: FlowSettings) -> None:
        """Count a long prompt where Envoy has sent it instead, if it is prefilled there."""
        long = self.longs.get(decision.id)
        if (
            long is not None
            and long.slot != decision.flight.slot
            and PrefillApart.of(decision) is None
        ):
            del self.longs[decision.id]
            self.count(decision, settings)


def priority_of(item: Item, epoch_s: float) -> int:
    """Return a priority for engines, lower first: by band, then by when slack runs out."""
    band = max(-_MAX_BAND, min(_MAX_BAND, item.band))
    slack_ends_s = item.arrival_s - item.earlier_s + max(0.0, item.objective_s - item.work_s)
    return -band * _BAND_STEP + int((epoch_s + slack_ends_s) * 1000.0)
