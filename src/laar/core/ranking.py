"""The candidates of a request in order, and the fallbacks among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from laar.core.attempts import asked_of
from laar.core.candidates import Group
from laar.core.decision import DirectorSettings
from laar.core.eligible import Eligible
from laar.core.interfaces import View
from laar.core.plugin import NO_PARTS, Admitted, Parts
from laar.core.policy import Policy
from laar.fleet.endpoints import EndpointTable, Floats, Slots
from laar.health import Health
from laar.request import Request


class Selected(NamedTuple):
    """A request, and where it may go.

    Args:
        request: the request.
        now: monotonic seconds.
        group: its candidates.
        able: all endpoints that are up and that it fits.
        earlier: the models tried earlier.
        admitted: what plug-ins know of it.
    """

    request: Request
    now: float
    group: Group
    able: Slots
    earlier: Sequence[str]
    admitted: Sequence[Admitted]


class Ranking(NamedTuple):
    """The candidates of a request in order, and why.

    Args:
        slots: the candidates.
        order: their positions in `slots`, the chosen one first.
        reason: why it was chosen.
        eligible: which of them may be chosen.
        policy: what ranked them; None, as the fields below, if the body is not read.
        view: what the policy saw.
        scores: the scores that it gave.
        on_trial: whether the request tests if the first has recovered.
        picked: the part of the plug-in that named the first, or preferred it without a view.
        last: slots that are doubted or full, which come last as fallbacks.
    """

    slots: Slots
    order: Sequence[int]
    reason: str
    eligible: Eligible
    policy: Policy | None = None
    view: View | None = None
    scores: Floats | None = None
    on_trial: bool = False
    picked: Parts = NO_PARTS
    last: Sequence[int] = ()


class Fallbacks:
    """Selects the fallbacks of a decision."""

    def __init__(self, table: EndpointTable, settings: DirectorSettings, health: Health) -> None:
        self._table, self._most, self._health = table, settings.fallbacks, health

    def of(
        self,
        selected: Selected,
        ranking: Ranking,
        served: str,
        parts: Parts,
        *,
        alike: bool,
    ) -> tuple[tuple[str, ...], bool]:
        """Return the fallbacks, best first, and whether this request may have none.

        They serve the model in the body, if any (`served`). Endpoints that are doubted or full come
        last. Those that the request does not fit are omitted, as their refusal would be final.
        Envoy retries with the same headers, so fallbacks must share the first endpoint's rank, key
        and base path, and, if a plug-in says `alike`, its model.
        They exclude who helps the first. Similar requests that often fail at several get none.
        """
        view, health, table = ranking.view, self._health, self._table
        # If all endpoints are failing, no request is blamed: one of them may have recovered.
        if view is not None and health.culprits and not selected.group.standing.all_failing:
            blamed = asked_of(view.request, view.chain).traits
            if health.records.blame.is_culprit(blamed, view.now):
                return (), True
        found, by_slot, slots = dict[str, None](), table.by_slot, ranking.slots
        first, *others = ranking.order
        if view is not None and (fits := view.fits) is not None:
            others = [at for at in others if fits[at]]
        chosen = by_slot[slots.item(first)]
        way, helpers = chosen.way, [part.helper for part in parts.values()] if parts else ()
        for slot in chain(map(slots.item, others), ranking.last):
            if len(found) >= self._most:
                break
            spec = by_slot[slot]
            if spec.rank != chosen.rank or (alike and spec.models[0] != chosen.models[0]):
                continue
            if served and served not in spec.models and table.sent_name(spec, served) != served:
                continue
            # All attempts have the same request path and key.
            if spec.way is not way and (spec.way.base, spec.way.key) != (way.base, way.key):
                continue
            # An endpoint is as many candidates as its model has variants.
            if slot not in helpers and spec is not chosen:
                found[spec.address] = None
        backed, once = tuple(found), False
        for known in selected.admitted:
            if known.reach is not None:
                backed = known.reach.within(chosen.address, backed)
                once = once or not backed
        return backed, once
