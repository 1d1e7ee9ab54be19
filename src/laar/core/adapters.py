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
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.latest import Latest

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


class Adapters:
    """Tracks the loaded adapters of each endpoint.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._endpoints: dict[int, _Endpoint] = {}

    def named(self, slot: int, name: str) -> str:
        """Return the adapter that serves a model name at an endpoint; empty if none does."""
        spec = self._table.spec(slot)
        name = self._table.sent_name(spec, name)
        return name if name in spec.adapters else ""

    def price(self, slots: Slots, name: str, answer_s: float) -> Floats | None:
        """Return the seconds that each endpoint takes to load an adapter; None if none has to.

        Args:
            slots: slots of the endpoints.
            name: the model name in the request.
            answer_s: duration of a complete answer, after which an adapter slot becomes free.
        """
        if not self._table.weights(name):
            return None
        prices = [self._price(slot, name, answer_s) for slot in slots.tolist()]
        return np.array(prices) if any(prices) else None

    def _price(self, slot: int, name: str, answer_s: float) -> float:
        if not (name := self.named(slot, name)):
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

    def ended(self, slot: int, name: str) -> None:
        """Record that the request ended, or moved to another endpoint."""
        if known := self._endpoints.get(slot):
            known.in_flight[name] -= 1
            if known.in_flight[name] <= 0:
                del known.in_flight[name]

    def read(self, slot: int, running: frozenset[str], max_adapters: float) -> None:
        """Record the running adapters and their limit, as an endpoint's metrics page reports them.

        Args:
            slot: the endpoint.
            running: adapters of running requests.
            max_adapters: how many adapters may run concurrently; NaN if not reported.
        """
        if slot >= 0 and not math.isnan(max_adapters):
            known = self._endpoints.setdefault(slot, _Endpoint())
            known.max_adapters = max_adapters
            known.seen = frozenset() if any(self._table.ignored(slot)) else running

    def restarted(self, slot: int) -> None:
        """Forget the endpoint's loaded adapters."""
        if known := self._endpoints.get(slot):
            known.last.clear()

    def state(self, slot: int) -> list[str]:
        """Return the adapters that were used at an endpoint, the latest last."""
        known = self._endpoints.get(slot)
        return [] if known is None else list(known.last)

    def restore(self, slot: int, names: Iterable[str]) -> None:
        """Restore a result of `state`."""
        self._endpoints.setdefault(slot, _Endpoint()).last.update(dict.fromkeys(names))

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._endpoints.pop(slot, None)
