"""The LoRA adapters that engines have loaded, and the cost of loading others.

An engine holds up to `max_loras` adapters in GPU memory. Loading another one for a request takes
`LOAD_S`. If `max_loras` other adapters are in use, the engine first waits until one of them has no
more requests, which takes about as long as an answer. Both costs are in seconds, like all other
terms, so a long enough queue outweighs the affinity to a loaded adapter.

An adapter is assumed to be loaded if this picker used it recently, or if the engine's metrics page
lists it, which covers other pickers' requests. Unknown adapters cost nothing, and an endpoint that
never reported its `max_loras` is assumed to have room.

At most `MAX_KEPT` names are kept per endpoint, and only those of adapters that it lists.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from laar.core.candidates import Group
from laar.core.cost import Price
from laar.core.decision import Completion, Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin, Pricing
from laar.fleet.endpoints import Floats, Reading, Slots
from laar.latest import Latest
from laar.prefix.match import PrefixMatch
from laar.untrusted import Text, valid

LOAD_S = 0.25
"""Seconds an engine takes to load an adapter: about 100 MB from a local disk."""

MAX_KEPT = 64
"""Maximum number of adapters remembered for each endpoint. Engines load a few; 64 is generous."""


@dataclass(slots=True)
class _Endpoint:
    max_adapters: float = math.inf
    last: Latest[str, None] = field(default_factory=lambda: Latest(MAX_KEPT))
    in_flight: Counter[str] = field(default_factory=Counter)
    seen: frozenset[str] = frozenset()

    def loaded(self) -> set[str]:
        """Return the adapters that are probably loaded."""
        kept = list(self.last)
        room = int(min(self.max_adapters, MAX_KEPT))
        return set(kept[max(0, len(kept) - room) :]) | self.seen


@dataclass(slots=True)
class Loads(Part):
    """Seconds until each candidate has loaded the adapter."""

    seconds: Floats

    def at(self, positions: Slots) -> Loads:
        """Return those of some candidates."""
        return Loads(self.seconds[positions])


@dataclass(slots=True)
class Used(Part):
    """The adapter that serves a request; empty if the model itself does.

    Args:
        name: its name.
        slot: slot of the endpoint at which it is counted.
        teaches: it was loaded before.
    """

    name: str
    slot: int
    teaches: bool

    @property
    def shared(self) -> Mapping[str, str]:
        """The adapter."""
        return {"adapter": self.name}


class Adapters(Plugin):
    """Tracks the loaded adapters of each endpoint."""

    name = "adapters"
    term = "load_s"

    def __init__(self) -> None:
        self._endpoints: dict[int, _Endpoint] = {}

    @staticmethod
    def of(decision: Decision) -> str:
        """Return the adapter that serves a request; empty if none does."""
        used = Used.among(decision.parts)
        return "" if used is None else used.name

    def join(self, core: Core) -> None:
        """Keep the table, and the engines, whose answers free an adapter's slot."""
        self._table, self._engines = core.table, core.engines

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part where an adapter has the name."""
        return Part() if group.weights else None

    def prescore(self, view: View, part: Part, group: Group, match: PrefixMatch | None) -> Loads:
        """Return the seconds until the adapter is loaded."""
        answer_s = float(self._engines.constants(view.slots, view.model_id).answer_s.mean())
        name = view.request.model
        seconds = [self._price(slot, name, answer_s) for slot in view.slots.tolist()]
        return Loads(np.array(seconds))

    def price(self, view: View, part: Loads, pricing: Pricing) -> tuple[Price, Floats] | None:
        """Add the seconds, which come before the first token."""
        if not np.count_nonzero(part.seconds):
            return None
        return pricing.price.delayed(part.seconds), part.seconds

    def select(self, view: View, part: Loads, at: int) -> Used:
        """Return the adapter that the request will use."""
        slot = view.slots.item(at)
        name = self._table.adapter(view.table.spec(slot), view.request.model)
        return Used(name, slot, teaches=not part.seconds[at])

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a request for the adapter."""
        used: Any = decision.parts[self]
        if used.name:
            self.sent(used.slot, used.name)

    def move(self, decision: Decision, now: float) -> None:
        """Count the request at the endpoint that serves it."""
        used: Any = decision.parts[self]
        self._release(used)
        used.slot = decision.flight.slot
        used.name = self._table.adapter(
            self._table.spec(used.slot), decision.rewrite or decision.request.model
        )
        self.reserve(decision, now)

    def complete(self, decision: Decision, end: Completion) -> None:
        """Release the adapter."""
        self._release(decision.parts[self])

    def _release(self, used: Any) -> None:
        if used.name and (known := self._endpoints.get(used.slot)):
            known.in_flight[used.name] -= 1
            if known.in_flight[used.name] <= 0:
                del known.in_flight[used.name]

    def record(self, decision: Decision) -> Mapping[str, object]:
        """Name the adapter: its outcomes do not count for the model."""
        return {"adapter": self.of(decision)}

    def _price(self, slot: int, name: str, answer_s: float) -> float:
        if not (name := self._table.adapter(self._table.spec(slot), name)):
            return 0.0
        known = self._endpoints.get(slot)
        if known is None:
            return LOAD_S
        if name in known.loaded():
            return 0.0
        busy = known.seen.union(known.in_flight)
        return LOAD_S + (answer_s if len(busy) >= known.max_adapters else 0.0)

    def sent(self, slot: int, name: str) -> None:
        """Record that a request for an adapter was sent to an endpoint."""
        known = self._endpoints.setdefault(slot, _Endpoint())
        known.in_flight[name] += 1
        known.last[name] = None

    def read(self, slot: int, reading: Reading) -> None:
        """Record the running adapters and their limit, if the page has one."""
        if slot >= 0 and not math.isnan(reading.max_adapters):
            known = self._endpoints.setdefault(slot, _Endpoint())
            known.max_adapters = reading.max_adapters
            known.seen = frozenset() if any(self._table.ignored(slot)) else reading.adapters

    def restarted(self, slot: int) -> None:
        """Forget the endpoint's loaded adapters."""
        if known := self._endpoints.get(slot):
            known.last.clear()

    def save(self) -> object:
        """Return the adapters that were used at each endpoint, the latest last."""
        return [
            (self._table.address(slot), list(known.last))  # it may be leaving
            for slot, known in self._endpoints.items()
        ]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`."""
        for key, names in valid(saved, tuple[Text, tuple[Text, ...]]):
            if (slot := self._table.slot(key)) >= 0:
                self._endpoints.setdefault(slot, _Endpoint()).last.update(dict.fromkeys(names))

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._endpoints.pop(slot, None)
