"""Engines that hold a few of their models at a time, and load another when it is asked for.

Ollama, llama-swap and LM Studio are of this kind. A request for a model that is not loaded waits
until the others' answers have ended, and then for the load, which takes seconds. Engines don't say
so: it is learned from first tokens. An endpoint is assumed to hold the `held` models that were
asked of it last, one at first, and to drop any after `kept_s` without a request. A request for
another model whose answer begins about when expected shows that the endpoint holds more, and one
that begins far later that it does not. Its lateness is the price of a load, by model; until one was
seen, loads are free.

Then a load has two costs. The request waits for it. And the model that it displaces, if no other
endpoint holds it, has to be loaded again, unless the new one is asked for again first: the load's
seconds, times the share of the displaced model in the requests for both. So rare models take turns
at one endpoint, and a frequent one keeps its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from laar.core.candidates import Group
from laar.core.cost import FIRST, Price
from laar.core.decision import Completion, Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin, Pricing
from laar.fleet.endpoints import Floats, Slots
from laar.fleet.membership import EndpointSpec
from laar.health.lateness import is_spoiled
from laar.latest import Latest
from laar.prefix.match import PrefixMatch
from laar.untrusted import Amount, Text, valid

LATE_S = 0.5
"""Seconds, and at least twice the expected time, by which a first token is late if its model had to
be loaded: less is not worth a price."""

IDLE_S = 30.0
"""Minimum seconds without a request after which an engine may drop a model; Ollama's are 300."""

MAX_MODELS = 64
"""Maximum number of models remembered for each endpoint, and of counts for each of these."""

_SAMPLES = 5
"""Number of the last loads whose median is the price."""

_FORGET_S = 600.0
"""Time constant with which requests for a model are forgotten."""

_Saved = tuple[
    Text, Annotated[int, Meta(ge=1, le=MAX_MODELS)], Amount, tuple[tuple[Text, Amount], ...]
]


@dataclass(slots=True)
class _Endpoint:
    held: int = 1
    kept_s: float = math.inf
    asked_at: Latest[str, float] = field(default_factory=lambda: Latest(MAX_MODELS))
    """When each model was asked for, the latest last."""
    loads_s: Latest[str, deque[float]] = field(default_factory=lambda: Latest(MAX_MODELS))
    loaded_at: float = -math.inf
    """When all loads that were asked for are probably done."""

    def loaded(self) -> list[str]:
        """Return the models that it probably holds, the one used last at the end."""
        return list(self.asked_at)[-self.held :]

    def depth(self, model: str) -> int:
        """Return how many models were asked for since this one; all if it never was."""
        return [*reversed(self.asked_at), model].index(model)

    def load_s(self, model: str) -> float:
        """Return the seconds to load a model: as the last times, or as others."""
        known = self.loads_s.get(model) or [s for of in self.loads_s.values() for s in of]
        return median(known) if known else 0.0


@dataclass(slots=True)
class Waits(Part):
    """For each candidate: seconds until the model is loaded, and those that others then lose."""

    own_s: Floats
    others_s: Floats

    def at(self, positions: Slots) -> Waits:
        """Return those of some candidates."""
        return Waits(self.own_s[positions], self.others_s[positions])


@dataclass(slots=True)
class Use(Part):
    """The model that a request uses.

    Args:
        model: its key.
        slot: slot of the endpoint.
        depth: how many models were asked for there since this one was.
        idle_s: seconds since it was; infinite if it never was.
        waits_s: seconds of the expected delay.
        teaches: the model was probably loaded.
    """

    model: str
    slot: int
    depth: int
    idle_s: float
    waits_s: float
    teaches: bool


class Swaps(Plugin):
    """Learns which models endpoints hold, and prices the loading of others."""

    name = "swaps"
    term = "swap_s"

    def __init__(self) -> None:
        self._endpoints = defaultdict[int, _Endpoint](_Endpoint)
        self._loading = set[int]()  # slots at which a load was seen
        self._asked: Latest[str, tuple[float, float]] = Latest(MAX_MODELS * MAX_MODELS)
        self._several, self._version = frozenset[int](), -1

    def join(self, core: Core) -> None:
        """Keep the table, and the engines, whose answers must end before a load."""
        self._table, self._engines = core.table, core.engines

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part where an endpoint has several models."""
        if self._version != self._table.version:
            self._version = self._table.version
            specs = self._table.by_slot.items()
            self._several = frozenset(slot for slot, spec in specs if _has_several(spec))
        several = self._several and not self._several.isdisjoint(group.slots.tolist())
        return Part() if several else None

    def prescore(self, view: View, part: Part, group: Group, match: PrefixMatch | None) -> Waits:
        """Return the seconds of loads, which are 0 at endpoints where none was seen."""
        waits = Waits(np.zeros(len(view.slots)), np.zeros(len(view.slots)))
        if not self._loading:
            return waits
        holders = Counter(model for of in self._endpoints.values() for model in of.loaded())
        answers_s = self._engines.constants(view.slots, view.model_id).answer_s
        for at in np.isin(view.slots, [*self._loading]).nonzero()[0].tolist():
            row = self._waits(view, view.slots.item(at), answers_s.item(at), holders)
            waits.own_s[at], waits.others_s[at] = row
        return waits

    def _waits(
        self, view: View, slot: int, answer_s: float, holders: Counter[str]
    ) -> tuple[float, float]:
        known, now = self._endpoints[slot], view.now
        model = self._key(slot, view.request.model)
        waits_s, load_s = max(known.loaded_at - now, 0.0), 0.0
        if not self._is_loaded(known, model, now):
            load_s = known.load_s(model)
        if not load_s:
            return waits_s, 0.0
        waits_s += load_s + (answer_s if view.table.in_flight.item(slot) > 0.0 else 0.0)
        loaded = known.loaded()
        if len(loaded) < known.held or holders[loaded[0]] > 1 or loaded[0] == model:
            return waits_s, 0.0
        theirs, ours = self._rate(loaded[0], now), self._rate(model, now)
        return waits_s, known.load_s(loaded[0]) * theirs / max(theirs + ours, 1e-9)

    def price(self, view: View, part: Waits, pricing: Pricing) -> tuple[Price, Floats] | None:
        """Add the seconds, which come before the first token."""
        if not np.count_nonzero(part.own_s):
            return None
        price, others_s = pricing.price.delayed(part.own_s), FIRST * part.others_s
        return (
            price._replace(others_s=price.others_s + others_s, total_s=price.total_s + others_s),
            part.own_s,
        )

    def select(self, view: View, part: Waits, at: int) -> Use:
        """Return the model that the request will use."""
        slot, waits_s, now = view.slots.item(at), part.own_s.item(at), view.now
        known, model = self._endpoints[slot], self._key(slot, view.request.model)
        idle_s = now - known.asked_at.get(model, -math.inf)
        teaches = not waits_s and self._is_loaded(known, model, now)
        return Use(model, slot, known.depth(model), idle_s, waits_s, teaches)

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a request for its model, which is then loaded."""
        use: Any = decision.parts[self]
        known = self._endpoints[use.slot]
        if not self._is_loaded(known, use.model, now) and (load_s := known.load_s(use.model)):
            known.loaded_at = max(known.loaded_at, now) + load_s
        known.asked_at[use.model] = now
        self._asked[use.model] = self._rate(use.model, now) + 1.0, now

    def move(self, decision: Decision, now: float) -> None:
        """Count the request at the endpoint that serves it; its time tells nothing."""
        use: Any = decision.parts[self]
        name, slot = decision.rewrite or decision.request.model, decision.flight.slot
        use.slot, use.model, use.depth = slot, self._key(slot, name), -1
        self.reserve(decision, now)

    def complete(self, decision: Decision, end: Completion) -> None:
        """Learn from the first token whether the model was loaded."""
        use: Any = decision.parts[self]
        terms = None if decision.view is None else decision.view.terms
        if not end.ok or end.cause != "complete" or use.depth < 0 or terms is None:
            return
        ttft_s = end.ttft_s if decision.request.stream else None
        took_s = end.latency_s if ttft_s is None else ttft_s
        if (began := decision.flight.began) and is_spoiled(took_s, began.late_s):
            return
        expected = terms.latency_s if ttft_s is None else terms.all_ttft_s
        known, loads = self._endpoints[use.slot], use.depth > 0 or use.idle_s >= IDLE_S
        load_s = known.load_s(use.model) if use.waits_s else 0.0
        expected_s = expected.item(decision.position) - min(load_s, use.waits_s)
        late_s = took_s - expected_s
        if loads and late_s > max(LATE_S, expected_s):
            known.loads_s.setdefault(use.model, deque(maxlen=_SAMPLES)).append(late_s)
            self._loading.add(use.slot)
            if not use.depth:
                known.kept_s = min(known.kept_s, use.idle_s)
            elif use.idle_s < math.inf:  # else it was not dropped: it never was loaded
                known.held = min(known.held, use.depth)
        elif loads and late_s < LATE_S:
            known.held = min(max(known.held, use.depth + 1), MAX_MODELS)
            if known.kept_s < use.idle_s < math.inf:
                known.kept_s = use.idle_s

    def _key(self, slot: int, name: str) -> str:
        """Return the model, or full name, that a request uses at an endpoint."""
        spec = self._table.spec(slot)
        sent = self._table.sent_name(spec, name)
        return spec.models[0] if sent in spec.same_weights or sent in spec.adapters else sent

    def _is_loaded(self, known: _Endpoint, model: str, now: float) -> bool:
        """Return whether an endpoint probably holds a model."""
        asked_at = known.asked_at.get(model, -math.inf)
        return known.depth(model) < known.held and now - asked_at < known.kept_s

    def _rate(self, model: str, now: float) -> float:
        """Return the number of requests for a model, the old ones forgotten."""
        count, at = self._asked.get(model, (0.0, now))
        return count * math.exp((at - now) / _FORGET_S)

    def restarted(self, slot: int) -> None:
        """Forget which models an engine had loaded."""
        if known := self._endpoints.get(slot):
            known.asked_at.clear()
            known.loaded_at = -math.inf

    def save(self) -> object:
        """Return what was learned about each endpoint."""
        return [
            (self._table.address(slot), known.held, min(known.kept_s, 1e9), prices)
            for slot, known in self._endpoints.items()
            if (prices := [(model, known.load_s(model)) for model in known.loads_s])
        ]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`."""
        for key, held, kept_s, prices in valid(saved, _Saved):
            if (slot := self._table.slot(key)) >= 0:
                known = self._endpoints[slot]
                known.held, known.kept_s = held, kept_s
                for model, load_s in prices:
                    known.loads_s[model] = deque([load_s], _SAMPLES)
                    self._loading.add(slot)

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._endpoints.pop(slot, None)
        self._loading.discard(slot)


def _has_several(spec: EndpointSpec) -> bool:
    """Return whether an endpoint has models besides its first, under whatever names."""
    others = {*spec.models[1:]}.difference(spec.same_weights, spec.adapters)
    return bool(others or spec.on_demand)
